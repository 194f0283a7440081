"""Model folders: what is saved is loaded, damage is named, and no save loses a model."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from klda.storage import array_files
from klda.storage import folder as storage
from klda.storage.folder import ModelBusyError, ModelChangedError, ModelFolderError
from tests.encoders.processes import run_python
from tests.factories import edit_document


def arrays(seed=0, size=140):
    rng = np.random.default_rng(seed)
    return {
        "predict/weights": rng.normal(size=(size, size)).astype(np.float32),
        "predict/fixed": np.arange(50_000, dtype=np.float32),
        "counts": np.arange(seed, seed + 5),
        "flags": np.array([True, False, True]),
        "empty": np.empty((0, 3), np.float16),
        "scalar": np.float64(seed).reshape(()),
    }


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype.kind == array.dtype.kind
        assert found[name].shape == array.shape


@pytest.fixture
def model(tmp_path):
    storage.save(tmp_path / "m", arrays(), {"classes": {}})
    return tmp_path / "m"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---------------------------------------------------------------- what is saved is loaded


def test_what_is_saved_is_loaded(tmp_path):
    folder = tmp_path / "new" / "model"
    storage.save(folder, arrays(), {"classes": {"über": 3}, "source": "caf\udce9.csv"})
    stored = storage.load(folder, verify=True)
    assert stored.document["classes"] == {"über": 3}
    assert stored.document["source"] == "caf\udce9.csv"  # half a surrogate pair
    assert_same(stored.arrays, arrays())
    assert "über" in (folder / "model.json").read_text(encoding="utf-8")


@settings(max_examples=30, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(
            st.sampled_from(["f8", "f4", "f2", "i8", ">i4", "u1", "?"]),
            st.integers(0, 70),
            st.sampled_from("CF"),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_files_are_safetensors_for_any_arrays(tmp_path_factory, shapes):
    folder = tmp_path_factory.mktemp("model")
    content = {
        f"a{i}": (np.arange(rows * 3) % 2).reshape(rows, 3).astype(dtype, order=order)
        for i, (dtype, rows, order) in enumerate(shapes)
    }
    storage.save(folder, content, {})
    read = {}
    for path in folder.glob("*.safetensors"):
        read |= safetensors.numpy.load_file(path)
    assert_same(read, content)
    assert_same(storage.load(folder).arrays, content)
    assert all(array.flags.aligned for array in storage.load(folder).arrays.values())


def test_only_what_changed_is_written_and_only_what_is_named_is_left(tmp_path):
    folder = tmp_path / "m"
    storage.save(folder, arrays(0), {})
    before = {path.name: path.stat().st_ino for path in folder.glob("*.safetensors")}
    (folder / ".new-0123456789abcdef0123456789abcdef").write_bytes(b"left by a kill")
    storage.save(folder, arrays(1), {})
    after = {path.name: path.stat().st_ino for path in folder.glob("*.safetensors")}
    kept = set(before.items()) & set(after.items())
    assert [name.split("-")[0] for name, _ in kept] == ["predict_fixed"]
    named = {entry["name"] for entry in storage.load(folder).document["files"]}
    assert {path.name for path in folder.iterdir()} == named | {"model.json", ".lock"}


def test_a_loaded_model_stays_whole_while_others_save_and_the_file_while_it_is_changed(model):
    stored = storage.load(model)
    storage.save(model, arrays(1), {})
    assert_same(stored.arrays, arrays(0))
    storage.load(model).arrays["predict/weights"][:] = 0
    assert_same(storage.load(model, verify=True).arrays, arrays(1))


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's /proc/self/io")
def test_loading_reads_no_array(tmp_path):
    storage.save(tmp_path / "m", {"big": np.zeros((4000, 4000), np.float32)}, {})
    code = f"""
from pathlib import Path
from klda.storage import folder as storage
read = lambda: int(Path("/proc/self/io").read_text().split()[1])
before = read()
assert storage.load({str(tmp_path / "m")!r}).arrays["big"].shape == (4000, 4000)
print(read() - before)
"""
    assert int(run_python(code)) < 100_000


# ---------------------------------------------------------------- damage


def json_of(text):
    return lambda model: (model / "model.json").write_text(text)


def edited(change):
    return lambda model: edit_document(model, change)


def part(change, name="small"):
    def damage(model):
        (path,) = model.glob(f"{name}-*")
        path.write_bytes(change(path.read_bytes()))

    return damage


def header(text):
    """Put another header in the place of a file, as if it had been written so."""

    def damage(model):
        (path,) = model.glob("small-*")
        content = len(text).to_bytes(8, "little") + text
        path.write_bytes(content)
        facts = {"bytes": len(content)}
        facts["sha256"] = facts["header_sha256"] = hashlib.sha256(content).hexdigest()

        def agree(document):
            for entry in document["files"]:
                entry |= facts if entry["name"] == path.name else {}

        edit_document(model, agree)

    return damage


def pipe(name):
    def damage(model):
        (path,) = model.glob(name)
        path.unlink()
        os.mkfifo(path)

    return damage


SECRET = {"name": "../secret", "bytes": 10, "sha256": "", "arrays": ["a"]}
UNREADABLE = r"small.* is truncated or damaged: its header can't be read"
BAD = r"model\.json is truncated or damaged"
DAMAGE = {
    "newer": (
        edited(lambda found: found.update(format_version=99, klda_version="7.0")),
        r"version 99, written by klda 7\.0.*Upgrade",
    ),
    "of 0.1": (edited(lambda found: found.update(format_version=1)), "saved by klda 0.1.*0.2.0"),
    "cut off": (part(lambda old: old[:-10]), "small.*truncated or damaged"),
    "cut off, large": (part(lambda old: old[:-10], "predict_weights"), "predict_weights.*damaged"),
    "a bit": (part(lambda old: old[:-10] + bytes([old[-10] ^ 1]) + old[-9:]), "small.*SHA-256"),
    "header too long": (part(lambda old: b"\0" * 7 + b"\x80" + old[8:]), "small.*damaged"),
    "header cut off": (part(lambda old: b"\0" * 8 + old[8:]), "small.*damaged"),
    "header of a list": (header(b"[]"), UNREADABLE),
    "header nested deeply": (header(b"[" * 100_000), UNREADABLE),
    "header without shapes": (header(b'{"a": 1}'), UNREADABLE),
    "no name": (edited(lambda found: found["files"][0].pop("name")), BAD),
    "no size": (edited(lambda found: found["files"][0].pop("bytes")), BAD),
    "no checksum": (edited(lambda found: found["files"][0].pop("sha256")), BAD),
    "empty": (json_of(""), BAD),
    "half of it": (lambda model: os.truncate(model / "model.json", 50), BAD),
    "nested deeply": (json_of('{"a":' * 100_000), BAD),
    "not a number": (json_of('{"a": NaN}'), BAD),
    "huge number": (json_of("9" * 5000), BAD),
    "huge": (lambda model: os.truncate(model / "model.json", 1 << 33), "8,589,934,592 bytes"),
    "a list": (json_of("[]"), "does not describe a klda model"),
    "something else": (json_of('{"format": "other"}'), "does not describe a klda model"),
    "a path": (
        edited(lambda found: found.update(files=[SECRET])),
        r"names an array file '\.\./secret'",
    ),
    "no file": (lambda model: next(model.glob("small-*")).unlink(), r"small.* is missing"),
    "no document": (lambda model: (model / "model.json").unlink(), r"there is no model\.json"),
}
if hasattr(os, "mkfifo"):
    DAMAGE |= {"pipe": (pipe("model.json"), "not a file"), "pipes": (pipe("small-*"), "not a file")}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(model, case):
    damage, message = DAMAGE[case]
    (model.parent / "secret").write_bytes(b"x" * 10)
    damage(model)
    with pytest.raises(ModelFolderError, match=message):
        storage.load(model)


def test_a_missing_folder_is_named_with_the_fix(tmp_path):
    with pytest.raises(ModelFolderError, match=r"no model folder .*gone.*klda learn"):
        storage.load(tmp_path / "gone")


def test_in_a_large_file_the_header_is_checked_at_every_load_and_the_data_when_verifying(tmp_path):
    storage.save(tmp_path / "m", {"a": np.zeros((600, 700))}, {})
    (path,) = (tmp_path / "m").glob("a-*")
    whole = path.read_bytes()
    assert len(whole) > array_files.VERIFIED_UP_TO
    path.write_bytes(whole[:-1] + b"\1")
    storage.load(tmp_path / "m")
    with pytest.raises(ModelFolderError, match="SHA-256"):
        storage.load(tmp_path / "m", verify=True)
    path.write_bytes(whole.replace(b"[600,700]", b"[700,600]", 1))
    with pytest.raises(ModelFolderError, match="SHA-256"):
        storage.load(tmp_path / "m")


def test_every_value_of_model_json_is_under_its_checksum(tmp_path):
    def values(document):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in list(items):
            yield document, key
            if isinstance(value, dict | list):
                yield from values(value)

    storage.save(tmp_path / "m", {"a": np.zeros(3)}, {"classes": {"x": 1}, "list": [1, None, 2.5]})
    path = tmp_path / "m" / "model.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document, indent=7, sort_keys=True))  # order is no value
    storage.load(tmp_path / "m", verify=True)
    n_values = len(list(values(document)))
    assert n_values > 15
    for i in range(2 * n_values):
        document = json.loads(json.dumps(document))
        changed = json.loads(json.dumps(document))
        container, key = list(values(changed))[i // 2]
        if i % 2:
            container[key] = "another"
        else:
            del container[key]
        path.write_text(json.dumps(changed))
        with pytest.raises(ModelFolderError):
            storage.load(tmp_path / "m")


# ---------------------------------------------------------------- where nothing may be written


def test_folders_and_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(ModelFolderError, match=r"not empty and holds no model.*diary\.txt"):
        storage.save(tmp_path, arrays(), {})
    with pytest.raises(ModelFolderError, match="is a file"):
        storage.save(tmp_path / "diary.txt", arrays(), {})
    assert content(tmp_path) == {"diary.txt": b"dear diary"}


@pytest.mark.skipif(sys.platform == "win32", reason="makes links as POSIX does")
@pytest.mark.parametrize("link", [Path.hardlink_to, Path.symlink_to])
def test_a_lock_that_leads_elsewhere_is_refused(model, tmp_path, link):
    elsewhere = tmp_path / "letter.txt"
    elsewhere.write_text("keep me")
    (model / storage.LOCK).unlink()
    link(model / storage.LOCK, elsewhere)
    with pytest.raises(ModelFolderError, match=r"\.lock is not a regular file.*Move it away"):
        storage.save(model, arrays(1), {})
    assert elsewhere.read_text() == "keep me"
    assert_same(storage.load(model).arrays, arrays())


@pytest.mark.skipif(sys.platform == "win32", reason="makes links and pipes as POSIX does")
@pytest.mark.parametrize(
    "make, told",
    [
        (lambda path: path.symlink_to("gone.json"), "file that is missing"),
        (os.mkfifo, "not a file"),
    ],
    ids=["broken link", "pipe"],
)
def test_a_model_that_can_not_be_read_is_not_taken_for_none(model, make, told):
    (model / storage.DOCUMENT).unlink()
    make(model / storage.DOCUMENT)
    names = {path.name for path in model.iterdir()}
    with pytest.raises(ModelFolderError, match=told):
        storage.load(model)
    with pytest.raises(storage.ModelExistsError):
        storage.save(model, arrays(1), {}, replaces=storage.NOTHING)
    assert {path.name for path in model.iterdir()} == {*names, storage.LOCK}


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), ImportError("failed to map segment")],
    ids=["file", "library"],
)
def test_a_lack_of_memory_is_not_damage(model, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(array_files, "open_file", fail)
    with pytest.raises(MemoryError):
        storage.load(model)


@pytest.mark.skipif(sys.platform == "win32", reason="makes links as POSIX does")
def test_an_array_file_that_is_a_link_is_replaced(model, tmp_path):
    """What it leads to may change, and is not ours to change."""
    (path,) = model.glob("small-*")
    before = path.read_bytes()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    storage.save(model, arrays(), {})
    (tmp_path / "elsewhere").write_bytes(b"changed")
    assert not path.is_symlink()
    assert path.read_bytes() == before


def test_a_folder_that_is_removed_is_a_real_one(model, tmp_path):
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(ModelFolderError, match=f"{name} is not a folder"):
            storage.remove(tmp_path / name)
    assert storage.exists(model)
    storage.remove(model)
    storage.remove(model)
    assert not model.exists()


# ---------------------------------------------------------------- saves that fail


@pytest.mark.parametrize("wrong", [np.array([None]), np.array([np.nan])])
def test_an_array_that_cannot_be_saved_leaves_the_model(model, wrong):
    with pytest.raises(ModelFolderError, match=r"'o' (has dtype object|holds values that are not)"):
        storage.save(model, {"o": wrong}, {})
    assert_same(storage.load(model, verify=True).arrays, arrays())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs resource limits")
@pytest.mark.parametrize("is_new", [False, True])
def test_a_full_disk_leaves_the_folder_as_it_was(model, is_new):
    folder, before = (model.parent / "new" if is_new else model), content(model)
    code = f"""
import resource, sys
import numpy as np
from klda.storage import folder as storage
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    storage.save({str(folder)!r}, {{"a": np.zeros(50_000, np.int32), "b": np.zeros(10**6)}}, {{}})
except storage.ModelFolderError as error:
    print(error)
"""
    said = run_python(code)
    assert "disk is full or a size limit was reached" in said
    assert "as it was before" in said
    assert content(model) == before
    assert folder.exists() is not is_new


class FailingSystem:
    """Lets the n-th writing call into the operating system fail."""

    def __init__(self, patch, fail_at):
        self.fail_at, self.calls = fail_at, 0
        patch.setattr(os, "fsync", self.wrap(os.fsync))
        patch.setattr(Path, "replace", self.wrap(Path.replace))
        patch.setattr(Path, "open", self.wrap(Path.open, lambda _, mode="r", **__: "x" in mode))

    def wrap(self, real, counts=lambda *_, **__: True):
        def call(*arguments, **options):
            self.calls += counts(*arguments, **options)
            if self.calls == self.fail_at and counts(*arguments, **options):
                raise OSError(28, "No space left on device")
            return real(*arguments, **options)

        return call


def test_a_failure_at_any_step_of_a_save_leaves_the_old_model_or_the_new(model, monkeypatch):
    for fail_at in range(1, 100):
        old = storage.load(model, verify=True)
        failed = None
        with monkeypatch.context() as patch:
            system = FailingSystem(patch, fail_at)
            try:
                storage.save(model, arrays(fail_at), {})
            except ModelFolderError as error:
                failed = error
        found = storage.load(model, verify=True)
        if failed is None:
            break
        if "as it was before" in str(failed):
            assert found.generation == old.generation
            assert_same(found.arrays, old.arrays)
        else:
            assert "did not confirm" in str(failed)
            assert_same(found.arrays, arrays(fail_at))
    # Three calls for each of two changed array files, three for model.json, three folder syncs.
    assert system.calls == fail_at - 1 == 12


# ---------------------------------------------------------------- several writers and readers


def test_another_process_or_thread_is_another_writer(model):
    code = f"""
from klda.storage import folder as storage
try:
    with storage.writer_lock({str(model)!r}):
        print("got it")
except storage.ModelBusyError as error:
    print(error)
"""
    caught = []

    def write():
        try:
            storage.save(model, arrays(1), {}, timeout=0.1)
        except ModelBusyError as error:
            caught.append(error)

    with storage.writer_lock(model):
        busy = run_python(code)
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        storage.save(model, arrays(2), {})  # the holder itself may save
    free = run_python(code)
    assert "Another process is writing" in busy
    assert str(model) in busy
    assert free == "got it\n"
    assert len(caught) == 1
    assert_same(storage.load(model).arrays, arrays(2))


def test_a_save_replaces_the_model_it_came_from_or_none(model):
    mine = storage.load(model)
    storage.save(model, arrays(1), {})
    before = (model / "model.json").read_bytes()
    with pytest.raises(ModelChangedError, match="Load it again"):
        storage.save(model, arrays(2), {}, replaces=mine.generation)
    with pytest.raises(storage.ModelExistsError, match="holds a model already"):
        storage.save(model, arrays(2), {}, replaces=storage.NOTHING)
    assert (model / "model.json").read_bytes() == before


def test_readers_never_fail_while_a_writer_saves(model):
    stop, failures = threading.Event(), []

    def read():
        while not stop.is_set():
            try:
                found = storage.load(model).arrays
                assert float(found["scalar"]) == found["counts"][0]
            except Exception as error:
                failures.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for seed in range(60):
        storage.save(model, arrays(seed), {})
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
