"""Damaged files, and files made to fill the memory: an error that names the file, nothing else."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from klda.data import TableError, open_table
from tests.data.exports import workbook
from tests.factories import write_parquet

TEXTS = [f"text number {i}, somewhat long" for i in range(40)]
LABELS = [f"label {i % 3}" for i in range(40)]
FEATURES = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


def parquet(columns, **options):
    return write_parquet(io.BytesIO(), columns, **options).getvalue()


def npz(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def csv_file(rows=40):
    lines = ["text,label", *(f'"{t}",{name}' for t, name in zip(TEXTS, LABELS, strict=True))]
    return "\n".join(lines[: rows + 1]).encode()


def jsonl_file():
    pairs = zip(TEXTS, LABELS, strict=True)
    return "\n".join(json.dumps({"text": t, "label": name}) for t, name in pairs).encode()


WHOLE = {
    "a.csv": csv_file,
    "a.csv.gz": lambda: gzip.compress(csv_file()),
    "a.jsonl": jsonl_file,
    "a.json": lambda: b"[" + jsonl_file().replace(b"\n", b", ") + b"]",
    "a.txt": lambda: "\n".join(TEXTS).encode(),
    "a.xlsx": lambda: workbook(list(zip(TEXTS, LABELS, strict=True))),
    "a.parquet": lambda: parquet({"text": TEXTS, "label": LABELS}, row_group_size=16),
    "b.parquet": lambda: parquet({"features": FEATURES.tolist(), "label": LABELS}),
    "a.npz": lambda: npz(features=FEATURES, labels=np.array(LABELS)),
    "b.npz": lambda: npz(np.savez_compressed, features=FEATURES, labels=np.array(LABELS)),
    "a.npy": lambda: npy(FEATURES),
}


def rows_of(path, rows=7):
    labels = path.suffix not in (".npy", ".txt")
    return sum(len(batch) for batch in open_table(path).batches(labels=labels, rows=rows))


def damaged(content, chance):
    """Return a file with a few bits flipped, a part overwritten, or its end cut off."""
    content = bytearray(content)
    kind = chance.choice(["flip", "flip", "overwrite", "cut"])
    if kind == "flip":
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == "overwrite":
        start = chance.randrange(len(content))
        part = chance.randbytes(min(chance.randint(1, 30), len(content) - start))
        content[start : start + len(part)] = part
    else:
        del content[chance.randrange(len(content)) :]
    return bytes(content)


@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_file_gives_rows_or_an_error_that_names_it(tmp_path, name):
    path, whole = tmp_path / name, WHOLE[name]()
    path.write_bytes(whole)
    assert rows_of(path) == 40
    chance, refused = random.Random(name), []
    for _ in range(200):
        path.write_bytes(damaged(whole, chance))
        try:
            rows_of(path)
        except TableError as error:
            refused.append(str(error))
    assert refused
    assert all(str(path) in message for message in refused)


FLIP_EVERY_BIT = """
import sys
from pathlib import Path
from klda.data import TableError, open_table
path = Path(sys.argv[1])
whole = path.read_bytes()
footer = int.from_bytes(whole[-8:-4], "little") + 8
refused = 0
for at in range(len(whole) - footer, len(whole)):
    for bit in range(8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            for batch in open_table(path).batches():
                pass
        except TableError:
            refused += 1
print(refused > footer)
"""


@pytest.mark.slow
def test_no_damage_to_the_footer_of_a_parquet_file_ends_the_process(tmp_path):
    """pyarrow aborts when it is asked for the metadata of some columns that can't be right."""
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet({"text": TEXTS, "label": LABELS}, store_schema=False))
    command = [sys.executable, "-c", FLIP_EVERY_BIT, path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


HEADER = np.lib.format.header_data_from_array_1_0(FEATURES)


def npy_with(**changes):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, HEADER | changes)
    return file.getvalue() + FEATURES.tobytes()


def npz_with(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def flipped_at_the_end_of_features():
    content = bytearray(npz(features=FEATURES, labels=np.array(LABELS)))
    content[content.index(FEATURES.tobytes()) + FEATURES.nbytes - 1] ^= 1
    return bytes(content)


LABELS_NPY = npy(np.array(LABELS))
ODD = {
    "a flipped bit": ("a.npz", flipped_at_the_end_of_features(), "'features'.*CRC"),
    "labels of width 0": (
        "a.npz",
        npz(features=FEATURES, labels=np.zeros(40, "<U0")),
        "row 1: the label is empty",
    ),
    "a huge row": (
        "a.npz",
        npz_with(features=npy_with(shape=(40, 10**15)), labels=LABELS_NPY),
        "a row of 4,000,000,000,000,0",
    ),
    "a row of more bytes than 2^64": (
        "a.npz",
        npz_with(features=npy_with(shape=(40, 2**62 + 1)), labels=LABELS_NPY),
        "a row of",
    ),
    "a huge label": (
        "a.npz",
        npz_with(features=npy(FEATURES), labels=npy_with(shape=(40,), descr="<U500000000")),
        "a row of 2,000,0",
    ),
    "no features": ("a.npz", npz(features=FEATURES[:, :0], labels=np.array(LABELS)), "shape"),
    "rows without end": (
        "a.npz",
        npz_with(features=npy_with(shape=(10**15, 0)), labels=LABELS_NPY),
        "shape",
    ),
    "a negative shape": (
        "a.npz",
        npz_with(features=npy_with(shape=(40, -5)), labels=LABELS_NPY),
        "'features': the file is damaged",
    ),
    "more rows than bytes": (
        "a.npz",
        npz_with(features=npy_with(shape=(41, 5)), labels=npy(np.array([*LABELS, "a"]))),
        "'features', after row 35: .*fewer rows",
    ),
    "more bytes than rows": (
        "a.npz",
        npz_with(features=npy_with(shape=(39, 5)), labels=npy(np.array(LABELS[1:]))),
        "'features', after row 35: .*more rows",
    ),
    "no array": ("a.npz", npz_with(features=b"nothing", labels=LABELS_NPY), "'features': the file"),
    "rows that are not there": ("a.npy", npy_with(shape=(10**9, 5)), "damaged"),
    "an archive": ("a.npy", npz(features=FEATURES), "damaged"),
    "objects": ("a.npy", b"\x93NUMPY\x01\x00", "damaged"),
    "a number of 5,000 digits": (
        "a.jsonl",
        b'{"text": "a", "label": "b"}\n{"text": "a", "label": %b}\n' % (b"1" * 5000),
        "line 2: broken row: not JSON",
    ),
    "texts that are not UTF-8": (
        "a.parquet",
        parquet({"text": TEXTS, "label": LABELS}, compression="none").replace(b"22", b"\xff\xff"),
        "damaged",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_odd_about_a_file_is_said(tmp_path, case):
    name, content, message = ODD[case]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TableError, match=message) as caught:
        rows_of(path)
    assert str(path) in str(caught.value)


def test_a_lack_of_memory_and_an_interrupt_are_not_taken_for_damage(tmp_path, monkeypatch):
    """Neither is the file's fault, and neither may end in advice to repair it."""
    path = tmp_path / "a.csv"
    path.write_bytes(csv_file())
    for kind in (MemoryError, KeyboardInterrupt):

        def fail(*given, kind=kind, **more):
            raise kind

        monkeypatch.setattr("klda.data.delimited.csv.reader", fail)
        with pytest.raises(kind):
            rows_of(path)


# ------------------------------------------------------------------------------- memory

LIMIT = 600 << 20  # bytes of data a process may have, with NumPy and Arrow in it
READ = """
import resource, sys
import numpy, pyarrow.parquet
from klda.data import TableError, open_table
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
try:
    for batch in open_table(sys.argv[1]).batches():
        pass
    print("read")
except TableError as error:
    print(error)
"""


def read_with_little_memory(path):
    pytest.importorskip("resource", reason="limits of memory are not there on Windows")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(
        [sys.executable, "-c", READ, path, str(LIMIT)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def compressed(path, first, middle, times):
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(first)
        for _ in range(times):
            file.write(middle)
    return path


MEGABYTE = b"x" * (1 << 20)
BOMBS = {
    "a line": lambda p: compressed(p / "a.csv.gz", b"text,label\n", MEGABYTE, 1000),
    "a row of many lines": lambda p: compressed(
        p / "a.csv.gz", b'text,label\n"', MEGABYTE[:1000] + b"\n", 1 << 20
    ),
    "a line of JSON": lambda p: compressed(p / "a.jsonl.gz", b'{"text": "', MEGABYTE, 1000),
    "an array in a zip file": lambda p: _zipped_rows(p / "a.npz"),
}


def _zipped_rows(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("features.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, HEADER | {"shape": (3, 1 << 28)})
            for _ in range(1000):
                file.write(bytes(1 << 20))
        archive.writestr("labels.npy", npy(np.array(list("abc"))))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("case", BOMBS)
def test_a_small_file_that_unpacks_to_a_gigabyte_is_refused_in_little_memory(tmp_path, case):
    path = BOMBS[case](tmp_path)
    assert path.stat().st_size < 10e6
    said = read_with_little_memory(path)
    assert said.startswith(str(path))
    assert "more than" in said


@pytest.mark.slow
def test_long_texts_are_read_in_little_memory(tmp_path):
    """Texts of five megabytes, 800 in all: fewer of them make a batch."""
    text = b"word " * (1 << 20)
    path = compressed(tmp_path / "a.csv.gz", b"text,label\n", text + b",a\n", 150)
    assert read_with_little_memory(path) == "read\n"


@pytest.mark.slow
def test_a_parquet_file_that_is_the_same_long_text_a_thousand_times_is_read_in_little_memory(
    tmp_path,
):
    import pyarrow

    texts = pyarrow.DictionaryArray.from_arrays(np.zeros(1024, np.int32), ["x" * (1 << 20)])
    path = tmp_path / "a.parquet"
    columns = {"text": texts, "label": ["a"] * 1024}
    path.write_bytes(parquet(columns, compression="zstd", store_schema=False))
    assert path.stat().st_size < 1e4
    assert read_with_little_memory(path) == "read\n"


def test_a_parquet_file_that_unpacks_to_many_times_its_size_is_refused(tmp_path):
    columns = {"text": ["x" * (1 << 20)] * 129, "label": ["a"] * 129}
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(columns, compression="zstd", use_dictionary=False))
    with pytest.raises(TableError, match="row group 1: the column 'text' would unpack from"):
        rows_of(path)


def test_a_list_of_millions_of_numbers_in_a_parquet_file_is_refused(tmp_path):
    import pyarrow

    numbers = pyarrow.array(np.zeros(1 << 25, np.float32))
    features = pyarrow.ListArray.from_arrays([0, 1 << 24, 1 << 25], numbers)
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet({"features": features, "label": ["a", "b"]}))
    assert path.stat().st_size < 1e5
    with pytest.raises(TableError, match=r"row group 1: the column 'features.* would unpack from"):
        rows_of(path)
