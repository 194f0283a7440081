"""A server of OpenAI's protocol: POST /v1/embeddings, backed by an encoder of this process."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager
from functools import partial


class EmbeddingServer(http.server.ThreadingHTTPServer):
    """Answers with the rows of an encoder; fails as often as `failures` says, in that order."""

    def __init__(self, encoder, key=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.encoder, self.key = encoder, key
        self.failures = []  # statuses, or bodies to answer with
        self.sizes = []  # texts in each request

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        """Stay quiet."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        if self.path != "/v1/embeddings":
            return self.answer(404, {"error": {"message": f"no {self.path}"}})
        if server.key and self.headers["Authorization"] != f"Bearer {server.key}":
            return self.answer(401, {"error": {"message": "invalid key"}})
        if server.failures:
            failure = server.failures.pop(0)
            status = failure if isinstance(failure, int) else 200
            return self.answer(status, {"error": "failed"} if status != 200 else failure)
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        server.sizes.append(len(texts))
        rows = server.encoder.encode(texts)
        data = [
            {"object": "embedding", "index": i, "embedding": row.tolist()}
            for i, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        data.reverse()  # the protocol numbers them
        content = {"object": "list", "data": data, "model": body["model"], "usage": usage}
        return self.answer(200, content)

    def answer(self, status, content):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def serving(encoder, **settings):
    """Yield a running server."""
    with EmbeddingServer(encoder, **settings) as server:
        thread = threading.Thread(target=partial(server.serve_forever, 0.01), daemon=True)
        thread.start()
        yield server
        server.shutdown()
