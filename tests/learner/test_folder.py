from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from klda import LDA, Learner
from klda.learner import array_files
from klda.learner import folder as storage
from klda.learner.folder import ModelBusyError, ModelChangedError, ModelFolderError
from tests import model_json


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
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape


def files_of(folder):
    return {path.name: path.stat().st_ino for path in folder.glob("*.safetensors")}


def test_what_is_saved_is_loaded(tmp_path):
    folder = tmp_path / "new" / "model"
    storage.save(folder, arrays(), {"classes": {"über": 3}})
    stored = storage.load(folder, verify=True)
    assert stored.document["classes"] == {"über": 3}
    assert stored.document["format_version"] == storage.FORMAT_VERSION
    assert_same(stored.arrays, arrays())
    assert "über" in (folder / "model.json").read_text(encoding="utf-8")


@settings(max_examples=30, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(["f8", "f4", "f2", "i8", "i4", "u1", "?"]), st.integers(0, 70)),
        min_size=1,
        max_size=6,
    )
)
def test_the_files_are_safetensors_for_any_arrays(tmp_path_factory, shapes):
    folder = tmp_path_factory.mktemp("model")
    content = {
        f"a{i}": (np.arange(rows * 3) % 2).reshape(rows, 3).astype(dtype)
        for i, (dtype, rows) in enumerate(shapes)
    }
    storage.save(folder, content, {})
    read = {}
    for path in folder.glob("*.safetensors"):
        read |= safetensors.numpy.load_file(path)
    assert_same(read, content)
    assert_same(storage.load(folder).arrays, content)
    assert all(array.flags.aligned for array in storage.load(folder).arrays.values())


def test_arrays_in_fortran_order_and_big_endian_survive(tmp_path):
    content = {"f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.arange(3, dtype=">i4")}
    storage.save(tmp_path / "m", content, {})
    loaded = storage.load(tmp_path / "m").arrays
    np.testing.assert_array_equal(loaded["f"], content["f"])
    np.testing.assert_array_equal(loaded["b"], content["b"])


def test_an_array_that_did_not_change_is_not_written_again(tmp_path):
    storage.save(tmp_path / "m", arrays(0), {})
    before = files_of(tmp_path / "m")
    storage.save(tmp_path / "m", arrays(1), {})
    after = files_of(tmp_path / "m")
    kept = set(before.items()) & set(after.items())
    assert [name.split("-")[0] for name, _ in kept] == ["predict_fixed"]
    assert_same(storage.load(tmp_path / "m").arrays, arrays(1))


def test_only_files_of_the_model_are_left(tmp_path):
    folder = tmp_path / "m"
    for seed in range(4):
        storage.save(folder, arrays(seed), {})
    (folder / ".new-0123456789abcdef0123456789abcdef").write_bytes(b"left by a kill")
    storage.save(folder, arrays(4), {})
    named = {entry["name"] for entry in storage.load(folder).document["files"]}
    assert {path.name for path in folder.iterdir()} == named | {"model.json", ".lock"}


def test_writing_to_a_loaded_array_leaves_the_file_alone(tmp_path):
    storage.save(tmp_path / "m", arrays(), {})
    storage.load(tmp_path / "m").arrays["predict/weights"][:] = 0
    assert_same(storage.load(tmp_path / "m", verify=True).arrays, arrays())


def test_a_loaded_model_stays_whole_while_others_save(tmp_path):
    storage.save(tmp_path / "m", arrays(0), {})
    stored = storage.load(tmp_path / "m")
    storage.save(tmp_path / "m", arrays(1), {})
    assert_same(stored.arrays, arrays(0))


def test_loading_reads_no_array(tmp_path):
    rows = np.zeros((4000, 4000), np.float32)
    storage.save(tmp_path / "m", {"big": rows}, {})
    if not Path("/proc/self/io").exists():
        pytest.skip("needs Linux's /proc/self/io")
    code = f"""
from pathlib import Path
from klda.learner import folder as storage
read = lambda: int(Path("/proc/self/io").read_text().split()[1])
before = read()
model = storage.load({str(tmp_path / "m")!r})
assert model.arrays["big"].shape == (4000, 4000)
print(read() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100_000


# ------------------------------------------------------------------------------- bad folders


@pytest.fixture
def model(tmp_path):
    storage.save(tmp_path / "m", arrays(), {"classes": {}})
    return tmp_path / "m"


def edit(model, **changes):
    model_json.edit(model, lambda document: document.update(changes))


def test_a_missing_folder_is_named_with_the_fix(tmp_path):
    with pytest.raises(ModelFolderError, match=r"no model folder .*gone.*klda learn"):
        storage.load(tmp_path / "gone")


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ModelFolderError, match=r"holds no model: there is no model\.json"):
        storage.load(tmp_path)


def test_a_newer_format_says_to_upgrade(model):
    edit(model, format_version=99, klda_version="7.0")
    with pytest.raises(ModelFolderError, match=r"version 99, written by klda 7\.0.*Upgrade"):
        storage.load(model)


@pytest.mark.parametrize("part", ["predict_weights", "small"])
def test_a_truncated_array_file_is_noticed_at_once(model, part):
    (path,) = model.glob(f"{part}-*")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelFolderError, match=f"{part}.*truncated or damaged"):
        storage.load(model)


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


def test_a_flipped_bit_in_a_large_file_is_noticed_when_verifying(tmp_path):
    storage.save(tmp_path / "m", arrays(size=600), {})
    (path,) = (tmp_path / "m").glob("predict_weights-*")
    assert path.stat().st_size > array_files.VERIFIED_UP_TO
    flip(path, -100)
    storage.load(tmp_path / "m")
    with pytest.raises(ModelFolderError, match="SHA-256"):
        storage.load(tmp_path / "m", verify=True)


@pytest.mark.parametrize("part", ["predict_weights", "small"])
def test_a_flipped_bit_in_a_small_file_is_noticed_at_every_load(model, part):
    (path,) = model.glob(f"{part}-*")
    flip(path, -10)
    with pytest.raises(ModelFolderError, match=f"{part}.*SHA-256"):
        storage.load(model)


def test_a_changed_shape_is_noticed_in_a_file_of_any_size(tmp_path):
    storage.save(tmp_path / "m", {"a": np.zeros((600, 700))}, {})
    (path,) = (tmp_path / "m").glob("a-*")
    path.write_bytes(path.read_bytes().replace(b"[600,700]", b"[700,600]", 1))
    with pytest.raises(ModelFolderError, match="SHA-256"):
        storage.load(tmp_path / "m")


def values(document):
    """Yield every container of a document with a key of it."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield document, key
        if isinstance(value, dict | list):
            yield from values(value)


def test_every_value_of_model_json_is_under_its_checksum(tmp_path):
    storage.save(tmp_path / "m", {"a": np.zeros(3)}, {"classes": {"x": 1}, "list": [1, None, 2.5]})
    path = tmp_path / "m" / "model.json"
    whole = path.read_text()
    n_values = len(list(values(json.loads(whole))))
    assert n_values > 15
    for i in range(n_values):
        document = json.loads(whole)
        container, key = list(values(document))[i]
        container[key] = "another"
        path.write_text(json.dumps(document))
        with pytest.raises(ModelFolderError):
            storage.load(tmp_path / "m")
        document = json.loads(whole)
        container, key = list(values(document))[i]
        del container[key]
        path.write_text(json.dumps(document))
        with pytest.raises(ModelFolderError):
            storage.load(tmp_path / "m")


def test_model_json_may_be_written_in_another_order(model):
    document = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(document, indent=7, sort_keys=True))
    assert_same(storage.load(model, verify=True).arrays, arrays())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": NaN}', "9" * 5000])
def test_json_that_no_parser_likes(model, text):
    (model / "model.json").write_text(text)
    with pytest.raises(ModelFolderError, match="damaged"):
        storage.load(model)


def test_a_huge_model_json_is_not_read(model):
    os.truncate(model / "model.json", 1 << 33)
    with pytest.raises(ModelFolderError, match="8,589,934,592 bytes"):
        storage.load(model)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["model.json", "small-*"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(model, name):
    (path,) = model.glob(name)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ModelFolderError, match="not a file"):
        storage.load(model)


@pytest.mark.parametrize("length", [2**63, 2**40, 0])
def test_a_damaged_header_is_an_error(model, length):
    file = next(model.glob("small-*"))
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(ModelFolderError, match=r"small.* is truncated or damaged"):
        storage.load(model)


@pytest.mark.parametrize("header", [b"[]", b"[" * 100_000, b'{"a": 1}'])
def test_a_header_of_something_else_is_an_error(model, header):
    file = next(model.glob("small-*"))
    content = len(header).to_bytes(8, "little") + header
    file.write_bytes(content)

    def agree(document):
        for entry in document["files"]:
            if entry["name"] == file.name:
                entry["bytes"] = len(content)
                entry["sha256"] = entry["header_sha256"] = hashlib.sha256(content).hexdigest()

    model_json.edit(model, agree)
    with pytest.raises(
        ModelFolderError, match=r"small.* is truncated or damaged: its header can't be read"
    ):
        storage.load(model)


@pytest.mark.parametrize("key", ["name", "bytes", "sha256"])
def test_an_array_file_without_its_facts_is_an_error(model, key):
    model_json.edit(model, lambda document: document["files"][0].pop(key))
    with pytest.raises(ModelFolderError, match=r"model\.json is truncated or damaged"):
        storage.load(model, verify=True)


def test_half_a_surrogate_pair_survives(tmp_path):
    storage.save(tmp_path / "m", {"a": np.zeros(2)}, {"source": "caf\udce9.csv"})
    assert storage.load(tmp_path / "m").document["source"] == "caf\udce9.csv"


def test_a_missing_array_file_is_named(model):
    (path,) = model.glob("predict_weights-*")
    path.unlink()
    with pytest.raises(ModelFolderError, match=r"predict_weights.* is missing"):
        storage.load(model)


@pytest.mark.parametrize("keep", [0, 1, 50, -3])
def test_a_truncated_model_json_is_named(model, keep):
    content = (model / "model.json").read_bytes()
    (model / "model.json").write_bytes(content[:keep])
    with pytest.raises(ModelFolderError, match=r"model\.json is truncated or damaged"):
        storage.load(model)


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "other"}', "3"])
def test_json_of_something_else(model, content):
    (model / "model.json").write_text(content)
    with pytest.raises(ModelFolderError, match="does not describe a klda model"):
        storage.load(model)


def test_a_forged_model_json_reaches_no_other_file(model, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 10)
    edit(model, files=[{"name": "../secret", "bytes": 10, "sha256": "", "arrays": ["a"]}])
    with pytest.raises(ModelFolderError, match=r"names an array file '\.\./secret'"):
        storage.load(model)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(ModelFolderError, match=r"not empty and holds no model.*diary\.txt"):
        storage.save(tmp_path, arrays(), {})
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "m").write_text("")
    with pytest.raises(ModelFolderError, match="is a file"):
        storage.save(tmp_path / "m", arrays(), {})


def test_an_array_that_cannot_be_saved_leaves_the_model(model):
    with pytest.raises(ModelFolderError, match="'o' has dtype object"):
        storage.save(model, {"o": np.array([None])}, {})
    assert_same(storage.load(model, verify=True).arrays, arrays())


# ------------------------------------------------------------------------------- full disk


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs resource limits")
def test_a_full_disk_leaves_the_model_and_no_litter(model):
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    code = f"""
import resource, sys
import numpy as np
from klda.learner import folder as storage
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    storage.save({str(model)!r}, {{"a": np.zeros(50_000, np.int32), "b": np.zeros(10**6)}}, {{}})
except storage.ModelFolderError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "disk is full or a size limit was reached" in done.stdout
    assert "as it was before" in done.stdout
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_a_full_disk_on_a_new_folder_leaves_no_folder(tmp_path):
    code = f"""
import resource
import numpy as np
from klda.learner import folder as storage
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    storage.save({str(tmp_path / "m")!r}, {{"b": np.zeros(10**6)}}, {{}})
except storage.ModelFolderError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "disk is full" in done.stdout
    assert not (tmp_path / "m").exists()


# ------------------------------------------------------------------------------- two writers


def test_a_second_writer_gets_an_error_that_names_the_folder(model):
    code = f"""
from klda.learner import folder as storage
try:
    with storage.writer_lock({str(model)!r}):
        print("got it")
except storage.ModelBusyError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    with storage.writer_lock(model):
        busy = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    free = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Another process is writing" in busy
    assert str(model) in busy
    assert free == "got it\n"


@pytest.mark.skipif(sys.platform == "win32", reason="makes links as POSIX does")
@pytest.mark.parametrize("link", [Path.hardlink_to, Path.symlink_to])
def test_a_lock_that_leads_elsewhere_is_refused_and_what_it_leads_to_is_left_alone(
    model, tmp_path, link
):
    elsewhere = tmp_path / "letter.txt"
    elsewhere.write_text("keep me")
    (model / storage.LOCK).unlink()
    link(model / storage.LOCK, elsewhere)
    with pytest.raises(ModelFolderError, match=r"\.lock is not a regular file.*Move it away"):
        storage.save(model, arrays(1), {})
    assert elsewhere.read_text() == "keep me"
    assert_same(storage.load(model).arrays, arrays())
    (model / storage.LOCK).unlink()
    storage.save(model, arrays(1), {})


def test_a_folder_in_a_model_folder_must_be_a_real_one(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    for name in ("elsewhere", "nothing"):
        storage.check_own(tmp_path / name, is_folder=True)
    for name in ("link", "file"):
        with pytest.raises(ModelFolderError, match=f"{name} is not a folder"):
            storage.check_own(tmp_path / name, is_folder=True)


def test_another_thread_is_another_writer(model):
    caught = []

    def write():
        try:
            storage.save(model, arrays(1), {}, timeout=0.1)
        except ModelBusyError as error:
            caught.append(error)

    with storage.writer_lock(model):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        storage.save(model, arrays(2), {})  # the holder itself may save
    assert len(caught) == 1
    assert_same(storage.load(model).arrays, arrays(2))


def test_a_model_that_someone_else_saved_is_not_overwritten(model):
    mine = storage.load(model)
    storage.save(model, arrays(1), {})
    with pytest.raises(ModelChangedError, match="Load it again"):
        storage.save(model, arrays(2), {}, replaces=mine.generation)
    assert_same(storage.load(model).arrays, arrays(1))


def test_a_new_model_takes_the_place_of_none(model):
    before = (model / "model.json").read_bytes()
    with pytest.raises(storage.ModelExistsError, match=r"holds a model already"):
        storage.save(model, arrays(1), {}, replaces=storage.NOTHING)
    assert (model / "model.json").read_bytes() == before


def test_readers_never_fail_while_a_writer_saves(model):
    stop = threading.Event()
    failures = []

    def read():
        while not stop.is_set():
            try:
                stored = storage.load(model)
                counts = stored.arrays["counts"]
                assert float(stored.arrays["scalar"]) == counts[0]
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


# ------------------------------------------------------------------------------- every step


class FailingSystem:
    """Lets the n-th writing call into the operating system fail."""

    def __init__(self, patch, fail_at):
        self.fail_at, self.calls = fail_at, 0
        real_open = Path.open
        patch.setattr(os, "fsync", self.wrap(os.fsync))
        patch.setattr(Path, "replace", self.wrap(Path.replace))
        patch.setattr(Path, "open", self.wrap(real_open, lambda _, mode="r", **__: "x" in mode))

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


@pytest.mark.parametrize("is_new", [True, False])
def test_a_learner_saves_again_after_a_save_that_the_disk_did_not_confirm(
    tmp_path, monkeypatch, is_new
):
    """Whichever step fails, the learner knows which model in the folder is its own."""
    learner = Learner("features", classifier=LDA()).learn(np.eye(4, dtype=np.float32), list("aabb"))
    confirmed, unconfirmed = [], 0
    for fail_at in range(1, 100):
        folder = tmp_path / (f"m{fail_at}" if is_new else "m")
        mine = learner.copy() if is_new else learner
        with monkeypatch.context() as patch:
            FailingSystem(patch, fail_at)
            try:
                mine.save(folder)
                confirmed.append(fail_at)
            except ModelFolderError as error:
                unconfirmed += "did not confirm" in str(error)
        mine.learn(np.eye(4, dtype=np.float32), list("aabb")).save(folder)
        assert Learner.load(folder).classes == mine.classes
        if confirmed:
            break
    assert confirmed
    assert unconfirmed == 2
