from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from klda.data import (
    Layout,
    Position,
    TableError,
    as_label,
    identity,
    open_bytes,
    open_table,
    open_tables,
    read,
)
from klda.data.files import find_files as find
from klda.data.formats import IN_FOLDERS
from klda.errors import KldaError
from klda.labels import similar_names
from tests.factories import write_parquet

ROWS = [("where is my card?", "card"), ("no", "yes"), ('say "hi", now', "talk"), ("a\nb", "card")]


def rows_of(path, *, labels=True, size=4096, **options):
    batches = list(open_table(path, **options).batches(labels=labels, rows=size))
    inputs = [value for batch in batches for value in batch.inputs]
    names = None if batches[0].labels is None else [name for c in batches for name in c.labels]
    return inputs, names


def find_files(paths):
    return find(paths, IN_FOLDERS)


def write_csv(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.fixture
def formats(tmp_path):
    """The same four rows in every text format."""
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        with (tmp_path / f"rows{suffix}").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=delimiter).writerows([("text", "label"), *ROWS])
    lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)
    (tmp_path / "rows.jsonl").write_text(lines)
    for suffix in (".csv", ".tsv", ".jsonl"):
        plain = (tmp_path / f"rows{suffix}").read_bytes()
        (tmp_path / f"rows{suffix}.gz").write_bytes(gzip.compress(plain))
    columns = {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}
    write_parquet(tmp_path / "rows.parquet", columns)
    return tmp_path


@pytest.mark.parametrize(
    "suffix", ["csv", "tsv", "jsonl", "csv.gz", "tsv.gz", "jsonl.gz", "parquet"]
)
@pytest.mark.parametrize("size", [1, 3, 4096])
def test_every_text_format_gives_the_same_rows_in_any_batches(formats, suffix, size):
    inputs, labels = rows_of(formats / f"rows.{suffix}", size=size)
    assert list(zip(inputs, labels, strict=True)) == ROWS


def test_words_that_look_like_missing_values_are_texts(tmp_path):
    words = ["no", "null", "NA", "NaN", "None", "n/a", "true"]
    path = write_csv(tmp_path / "a.csv", "text,label\n" + "".join(f"{w},{w}\n" for w in words))
    assert rows_of(path) == (words, words)


def test_labels_are_optional_for_predicting(tmp_path):
    path = write_csv(tmp_path / "a.csv", "text\nhello\n")
    assert rows_of(path, labels=False) == (["hello"], None)
    path = write_csv(tmp_path / "a.txt", "hello\n\nworld\n")
    assert rows_of(path, labels=False) == (["hello", "world"], None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,notes\nhello,\n"),
        ("a.csv", "text,label\nhello,\n"),
        ("a.csv", "foo,label\nhello,\n"),
        ("a.jsonl", '{"text": "hello", "score": 0.5}\n'),
    ],
)
def test_predicting_reads_no_column_but_the_input(tmp_path, name, content):
    assert rows_of(write_csv(tmp_path / name, content), labels=False) == (["hello"], None)


def test_predicting_ignores_the_labels_of_features(tmp_path):
    features = np.ones((2, 3), np.float32)
    np.savez(tmp_path / "a.npz", features=features, labels=np.array(["", "a"]))
    parquet = tmp_path / "a.parquet"
    write_parquet(parquet, {"x": [1.0, 2.0], "z": [3.0, 4.0], "label": [None, "a"]})
    for path in (tmp_path / "a.npz", parquet):
        (batch,) = open_table(path, modality="features").batches(labels=False)
        assert len(batch) == 2
        assert batch.labels is None


def test_lines_are_texts_unless_they_are_a_table():
    def texts(content):
        table = open_bytes(io.BytesIO(content), name="standard input.txt")
        return [text for batch in table.batches(labels=False, rows=2) for text in batch.inputs]

    assert texts(b"a\r\n\n b \nc") == ["a", " b ", "c"]
    assert texts(b"text,id\na,1\n") == ["a"]
    assert texts(b'{"text": "a"}\n') == ["a"]
    assert texts(b"id\tNachricht\n1\thallo du\n2\tund du\n") == ["hallo du", "und du"]


def test_a_file_may_hold_one_object_of_objects(tmp_path):
    row = {"ticket": {"subject": "Card", "body": "where is it?"}, "meta": {"queue": "cards"}}
    (tmp_path / "a.json").write_text(json.dumps(row, indent=1))
    assert rows_of(tmp_path / "a.json") == (["Card\nwhere is it?"], ["cards"])


def test_integer_labels_become_strings(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": 3}\n')
    assert rows_of(path) == (["a"], ["3"])


BROKEN = {  # beside the faults of tests/data/exports.py
    "more fields": ("a.csv", b"text,label\nfine,a\nx,y,z\n", "line 3.*3 columns.*first line has 2"),
    "line after a multi-line field": (
        "a.csv",
        b'text,label\n"two\nlines",a\nx\n',
        "line 4.*1 column,",
    ),
    "half a workbook": ("a.csv", b"PK\x03\x04\x14\x00", "damaged"),
    "an old workbook": ("a.xls", b"\xd0\xcf\x11\xe0\x14\x00", "old Excel: save it as .xlsx"),
    "no text column": (
        "a.csv",
        b"foo,bar,label\na,b,c\n",
        "are: foo, bar, label.*Name the text column",
    ),
    "same column twice": ("a.csv", b"text,label,text\na,b,c\n", r"are: text \(1\), label, text"),
    "empty jsonl": ("a.jsonl", b"", "is empty"),
    "not JSON": ("a.jsonl", b'{"text": "a", "label": "b"}\n{"text": \n', "line 2.*not JSON"),
    "not an object": ("a.jsonl", b"[1, 2]\n", "row 1.*one JSON object"),
    "two arrays": (
        "a.json",
        b'[{"text": "a", "label": "b"}]\n[{"text": "c", "label": "d"}]\n',
        "row 2.*something follows the array",
    ),
    "null text": ("a.jsonl", b'{"text": null, "label": "b"}\n', "line 1: the text is empty"),
    "text is a number": (
        "a.jsonl",
        b'{"text": 5, "label": "b"}\n',
        "line 1: the text must be a string; got int: 5",
    ),
    "label is a list of numbers": (
        "a.jsonl",
        b'{"text": "a", "label": [1]}\n',
        "line 1: the label is",
    ),
    "key missing later": (
        "a.jsonl",
        b'{"text": "a", "label": "b"}\n{"text": "a"}\n',
        "line 2: the label is empty",
    ),
    "cut gzip": ("a.csv.gz", gzip.compress(b"text,label\n" + b"abc,d\n" * 9)[:-9], "cut short"),
    "no parquet": ("a.parquet", b"text,label\n", "damaged.*not what its name says"),
    "no npz": ("a.npz", b"text,label\n", "damaged.*not what its name says"),
    "empty npz": ("a.npz", b"", "damaged.*not what its name says"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named_with_the_place_and_the_fix(tmp_path, case):
    name, content, message = BROKEN[case]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TableError, match=message) as caught:
        rows_of(path)
    assert str(path) in str(caught.value)


@pytest.fixture
def field_limit():
    before = csv.field_size_limit(131_072)  # Python's own
    yield
    csv.field_size_limit(before)


def test_long_texts_are_read_and_one_beyond_the_limit_is_named(tmp_path, field_limit):
    path = tmp_path / "long.csv"
    path.write_text(f"text,label\nshort,a\n{'w ' * 100_000},b\n")
    assert [len(text) for text in rows_of(path)[0]] == [5, 200_000]
    path.write_text(f"text,label\nshort,a\n{'w ' * (1 << 23)},b\n")
    with pytest.raises(TableError, match=r"long\.csv, line 3: .* 16,777,216 char.* Shorten"):
        rows_of(path)


def test_another_modality_than_needed_says_what_to_give(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    with pytest.raises(TableError, match="holds features rows, but text rows are needed"):
        open_table(tmp_path / "x.npy", modality="text")


# ------------------------------------------------------------------------------- features


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("size", [3, 100])
def test_npz_gives_features_and_labels_in_batches(tmp_path, save, size):
    features = np.arange(30, dtype=np.float32).reshape(10, 3)
    labels = np.array([f"c{i % 3}" for i in range(10)])
    save(tmp_path / "x.npz", features=features, labels=labels)
    table = open_table(tmp_path / "x.npz")
    batches = list(table.batches(rows=size))
    assert table.modality == "features"
    np.testing.assert_array_equal(np.concatenate([c.inputs for c in batches]), features)
    assert [name for c in batches for name in c.labels] == labels.tolist()
    assert batches[-1].fraction == 1.0


def test_npz_of_images_is_an_image_table(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(4))
    table = open_table(tmp_path / "x.npz")
    (batch,) = table.batches()
    assert table.modality == "image"
    assert batch.inputs.shape == (4, 8, 8, 3)
    assert batch.labels == ["0", "1", "2", "3"]


def test_npy_is_for_predicting(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 2)))
    assert len(rows_of(tmp_path / "x.npy", labels=False)[0]) == 5
    with pytest.raises(TableError, match=r"no labels.*savez"):
        rows_of(tmp_path / "x.npy")


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"features": np.zeros((3, 2)), "labels": np.zeros(2, int)}, "3 rows.*one label per row"),
        ({"features": np.zeros(3), "labels": np.zeros(3, int)}, "expected .rows, features."),
        ({"other": np.zeros((3, 2)), "more": np.zeros(3)}, "can't tell"),
        ({"features": np.zeros((3, 2))}, "label"),
        ({"features": np.zeros((3, 2)), "labels": np.array(["a", 1, None], object)}, "objects"),
        ({"features": np.asfortranarray(np.ones((3, 2))), "labels": np.arange(3)}, "Fortran"),
        ({"features": np.zeros((3, 2)), "labels": np.array(["a", " ", "b"])}, "row 2.*empty"),
    ],
)
def test_a_wrong_npz_says_what_is_wrong(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(TableError, match=message):
        rows_of(tmp_path / "x.npz")


@pytest.mark.parametrize("wide", [False, True])
def test_parquet_of_features(tmp_path, wide):
    features = np.random.default_rng(0).normal(size=(10, 3))
    columns = (
        {f"f{i}": features[:, i] for i in range(3)} if wide else {"embedding": features.tolist()}
    )
    write_parquet(tmp_path / "x.parquet", {**columns, "label": [f"c{i}" for i in range(10)]})
    opened = open_table(tmp_path / "x.parquet")
    batches = list(opened.batches(rows=4))
    assert opened.modality == "features"
    np.testing.assert_array_equal(np.concatenate([c.inputs for c in batches]), features)
    assert batches[0].labels == ["c0", "c1", "c2", "c3"]


def test_a_column_of_features_that_is_asked_for_is_looked_for(tmp_path):
    write_parquet(
        tmp_path / "x.parquet", {"Vectors": [[1.0, 2.0]], "other": [[3.0, 4.0]], "label": ["b"]}
    )
    opened = open_table(tmp_path / "x.parquet", modality="features", layout=Layout("vectors"))
    assert next(opened.batches(rows=1)).inputs.tolist() == [[1.0, 2.0]]
    opened = open_table(tmp_path / "x.parquet", modality="features", layout=Layout("missing"))
    with pytest.raises(TableError, match="no column 'missing'; its columns are: Vectors, other"):
        list(opened.batches())


def test_parquet_with_texts_and_vectors_is_a_text_table_unless_asked(tmp_path):
    write_parquet(
        tmp_path / "x.parquet", {"text": ["a"], "embedding": [[1.0, 2.0]], "label": ["b"]}
    )
    assert open_table(tmp_path / "x.parquet").modality == "text"
    assert open_table(tmp_path / "x.parquet", modality="features").modality == "features"


def test_rows_of_different_lengths_are_refused(tmp_path):
    write_parquet(
        tmp_path / "x.parquet",
        {"features": [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], "label": list("abc")},
    )
    with pytest.raises(TableError, match="different lengths"):
        rows_of(tmp_path / "x.parquet")


# ------------------------------------------------------------------------------- images


@pytest.fixture
def photos(tmp_path):
    for name in ("cats/1.jpg", "cats/deep/2.PNG", "dogs/3.jpeg", "dogs/notes.txt", "dogs/.4.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path / "photos"


def test_a_folder_of_folders_is_one_class_each(photos):
    inputs, labels = rows_of(photos)
    found = sorted(
        (path.relative_to(photos).as_posix(), name)
        for path, name in zip(inputs, labels, strict=True)
    )
    assert found == [("cats/1.jpg", "cats"), ("cats/deep/2.PNG", "cats"), ("dogs/3.jpeg", "dogs")]


def test_a_flat_folder_is_for_predicting(photos):
    inputs, labels = rows_of(photos / "cats" / "deep", labels=False)
    assert [path.name for path in inputs] == ["2.PNG"]
    assert labels is None
    with pytest.raises(TableError, match=r"no labels\. Put the images of each class"):
        rows_of(photos / "cats" / "deep")


def test_data_files_beside_a_folder_are_not_taken_for_images(tmp_path, photos):
    shards = tmp_path / "shards"
    (shards / "old").mkdir(parents=True)
    write_csv(shards / "a.csv", "text,label\nhello,a\n")
    with pytest.raises(TableError, match=r"data files and folders.*shards/\*\.csv"):
        open_tables(shards)
    assert find_files(shards / "*.csv") == [shards / "a.csv"]
    write_csv(photos / "notes.txt", "cats and dogs\n")
    assert find_files(photos) == [photos]


def test_a_class_without_images_is_an_error(photos):
    (photos / "empty").mkdir()
    with pytest.raises(TableError, match="empty holds no images"):
        rows_of(photos)


def test_learning_sees_the_classes_of_a_folder_mixed(tmp_path):
    for i in range(20):
        for name in "ab":
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{i:02}.jpg").touch()
    first = next(open_table(tmp_path).batches(rows=10))
    again = next(open_table(tmp_path).batches(rows=10))
    assert set(first.labels) == {"a", "b"}
    assert first == again
    order = [path.as_posix() for path in rows_of(tmp_path, labels=False)[0]]
    assert order == sorted(order)


def test_a_table_of_image_paths_is_relative_to_the_table(tmp_path):
    path = write_csv(tmp_path / "a.csv", "image,label\ncats/1.jpg,cat\n")
    inputs, labels = rows_of(path, modality="image")
    assert inputs == [tmp_path / "cats/1.jpg"]
    assert labels == ["cat"]


# ------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("kind, n", [("csv", 100_000), ("npz", 200_000)])
def test_a_large_file_never_sits_in_memory(tmp_path, kind, n):
    path = tmp_path / f"large.{kind}"
    if kind == "csv":
        with path.open("w") as file:
            file.write("text,label\n")
            file.writelines(f"{'word ' * 40}{i},class{i % 7}\n" for i in range(n))
    else:
        np.savez(path, features=np.zeros((n, 32), np.float32), labels=np.zeros(n, int))
    size = path.stat().st_size
    tracemalloc.start()
    try:
        rows = sum(len(batch) for batch in open_table(path).batches(rows=1000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == n
    assert peak < size / 10


# ------------------------------------------------------------------------------- parts of files


@pytest.fixture
def long_files(tmp_path):
    """The same 50 rows in every kind of file that is read in part."""
    texts, labels = [f"text {i}" for i in range(50)], [f"label {i % 3}" for i in range(50)]
    features = np.arange(100, dtype=np.float32).reshape(50, 2)
    lines = [f"{text},{label}\n" for text, label in zip(texts, labels, strict=True)]
    blank = "".join(line + ("\n" if i % 7 == 0 else "") for i, line in enumerate(lines))
    (tmp_path / "a.csv").write_text("text,label\n" + blank)
    pairs = zip(texts, labels, strict=True)
    rows = "".join(json.dumps({"text": t, "label": la}) + "\n" for t, la in pairs)
    (tmp_path / "b.jsonl").write_text(rows)
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write(rows)
    write_parquet(tmp_path / "d.parquet", {"text": texts, "label": labels}, row_group_size=9)
    write_parquet(
        tmp_path / "e.parquet", {"features": list(features), "label": labels}, row_group_size=9
    )
    np.savez(tmp_path / "f.npz", features=features, labels=np.array(labels))
    np.savez_compressed(tmp_path / "g.npz", features=features, labels=np.array(labels))
    return tmp_path


def parts_of(path, **options):
    return [
        (np.asarray(batch.inputs).tolist(), batch.labels, batch.fraction)
        for batch in open_table(path).batches(**options)
    ]


@pytest.mark.parametrize("size", [4, 10, 25])
@pytest.mark.parametrize("letter", "abcdefg")
def test_rows_skipped_at_the_beginning_leave_the_other_batches_as_they_are(
    long_files, letter, size
):
    (path,) = long_files.glob(f"{letter}.*")
    whole = parts_of(path, rows=size)
    assert [len(inputs) for inputs, _, _ in whole[:-1]] == [size] * (len(whole) - 1)
    for batch in range(len(whole) + 1):
        assert parts_of(path, rows=size, skip=batch * size) == whole[batch:]


def test_a_row_is_counted_from_the_beginning_also_after_rows_skipped(tmp_path):
    np.savez(tmp_path / "x.npz", features=np.ones((9, 2)), labels=np.array(list("aaaaaaaa ")))
    with pytest.raises(TableError, match="row 9: the label is empty"):
        list(open_table(tmp_path / "x.npz").batches(rows=2, skip=6))


def test_files_are_read_one_after_the_other_and_places_lead_back(long_files):
    tables = [open_table(long_files / name) for name in ("a.csv", "b.jsonl", "d.parquet")]
    batches = list(read(tables, labels=True))
    assert [batch.end for batch in batches] == [Position(0, 50), Position(1, 50), Position(2, 50)]
    for i, batch in enumerate(batches):
        assert list(read(tables, labels=True, start=batch.end)) == batches[i + 1 :]


def test_patterns_and_folders_of_data_files_become_their_files_in_order(tmp_path, monkeypatch):
    shards = tmp_path / "shards"
    shards.mkdir()
    for name in ("b.csv", "a.csv.gz", "c.jsonl", "_SUCCESS", "info.json", ".hidden.csv"):
        (shards / name).write_text("")
    named = ["a.csv.gz", "b.csv", "c.jsonl"]
    assert [path.name for path in find_files([shards])] == named
    assert [path.name for path in find_files([f"{shards}/*.csv*"])] == named[:2]
    assert [path.name for path in find_files([f"{tmp_path}/**/c.*", shards / "b.csv"])] == [
        "c.jsonl",
        "b.csv",
    ]
    monkeypatch.chdir(tmp_path)
    assert find_files(["shar*"]) == find_files(["shards"])


def test_a_file_that_is_named_in_several_ways_is_read_once(tmp_path, monkeypatch):
    sub = tmp_path / "shards" / "sub"
    sub.mkdir(parents=True)
    for name in ("a.csv", "b.csv"):
        (sub / name).write_text("")
    files = [sub / "a.csv", sub / "b.csv"]
    assert find_files([f"{sub}/**"]) == files  # matches the folder, too
    assert find_files([f"{tmp_path}/shards/**"]) == files
    assert find_files([sub / "b.csv", f"{sub}/*.csv"]) == files[::-1]
    assert find_files([sub, sub / "a.csv"]) == files
    assert find_files(f"{sub}/a*") == files[:1]
    monkeypatch.chdir(sub)
    assert find_files(["a.csv", sub / "a.csv"]) == [Path("a.csv")]


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path):
    with pytest.raises(TableError, match=r"\*\.parquet: no file matches this pattern"):
        find_files([f"{tmp_path}/*.parquet"])


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    (tmp_path / "rows[1].csv").write_text("")
    assert find_files([tmp_path / "rows[1].csv"]) == [tmp_path / "rows[1].csv"]


def test_folders_of_images_stay_folders(photos):
    (photos / "labels.txt").write_text("")
    assert find_files([photos]) == [photos]
    one_class = next(entry for entry in sorted(photos.iterdir()) if entry.is_dir())
    assert find_files([one_class]) == [one_class]


def test_a_changed_file_has_another_identity(tmp_path, photos):
    file = tmp_path / "x.csv"
    file.write_text("text,label\n" + "a,b\n" * 100_000)
    before, times = identity(file), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    assert identity(file) == before == json.loads(json.dumps(before))
    with file.open("a") as opened:
        opened.write("a,c\n")
    assert identity(file) != before
    file.write_text("text,label\n" + "a,b\n" * 99_999 + "a,c\n")
    os.utime(file, ns=times)  # as a restored or synchronised file may have it
    assert identity(file) != before
    images = identity(photos)
    assert identity(photos) == images
    (photos / "dogs" / "3.jpeg").unlink()
    assert identity(photos) != images


# ------------------------------------------------------------------------------- what people write


@pytest.mark.parametrize("suffix, separator", [("csv", ","), ("tsv", "\t"), ("csv", ";")])
def test_blanks_around_a_label_are_not_part_of_it(tmp_path, suffix, separator):
    text = f"text{separator} label\nhello{separator} pin\n there {separator}pin \n"
    inputs, labels = rows_of(write_csv(tmp_path / f"a.{suffix}", text))
    assert labels == ["pin", "pin"]
    assert inputs == ["hello", " there "]


@pytest.mark.parametrize("blank", ["\n", "\r\n\r\n", "  \n\n"])
def test_blank_lines_before_the_header_are_passed_over(tmp_path, blank):
    lines = blank.count("\n")
    path = write_csv(tmp_path / "a.csv", f"{blank}text;label\nx;y\n")
    assert rows_of(path) == (["x"], ["y"])
    write_csv(path, f"{blank}text;label\nx;y\nbroken\n")
    with pytest.raises(TableError, match=f"line {lines + 3}: broken row"):
        rows_of(path)
    write_csv(path, blank)
    with pytest.raises(TableError, match="is empty"):
        rows_of(path)


@pytest.mark.parametrize("rows", [4096, 7])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("kind", ["npz", "npy", "parquet"])
def test_a_feature_that_is_no_number_is_named_by_its_row(tmp_path, kind, value, rows):
    features = np.zeros((30, 3))
    features[24, 1] = value
    path = tmp_path / f"a.{kind}"
    if kind == "npz":
        np.savez(path, features=features, labels=np.array(["x"] * 30))
    elif kind == "npy":
        np.save(path, features)
    else:
        columns = {"features": features.tolist(), "label": ["x"] * 30}
        write_parquet(path, columns)
    table = open_table(path)
    for skip in (0, 14):
        with pytest.raises(TableError, match=rf"a\.{kind}, row 25: a feature is not finite"):
            list(table.batches(labels=kind != "npy", rows=rows, skip=skip))


@pytest.mark.parametrize("key", ["text", "label"])
def test_half_a_surrogate_pair_is_named_by_its_line(tmp_path, key):
    row = {"text": "x", "label": "y"}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {key: "x\ud800"}) + "\n")
    said = {"text": "the text is not valid Unicode", "label": r"the label .* contains '\\ud800'"}
    with pytest.raises(TableError, match=rf"a\.jsonl, line 2: {said[key]}"):
        rows_of(path)


def test_deeply_nested_json_is_a_broken_row(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "label": "y"}\n' + "[" * 200_000 + "\n")
    with pytest.raises(TableError, match="line 2: broken row: not JSON"):
        rows_of(path)


def test_cells_of_objects_in_objects_are_columns_and_the_objects_are_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"a.b": {"c": f"text {i}"}, "of": {"queue": "x", "list": [i]}} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"a.b": "none"}]))
    table = open_table(path, layout=Layout("a.b.c", "of.queue"))
    bad = []
    (batch,) = table.batches(keep=None, bad=bad.append)
    assert (batch.inputs, batch.labels) == (["text 0", "text 1", "text 2"], ["x"] * 3)
    assert batch.cells == {name: [row[name] for row in rows] for name in rows[0]}
    assert [(row.place, row.problem) for row in bad] == [("line 4", "the text is empty.")]


@pytest.mark.parametrize("row", [",", " , ", "  ,", ",\t"])
def test_blank_rows_are_skipped(tmp_path, row):
    path = write_csv(tmp_path / "a.csv", f"text,label\nx,y\n{row}\nz,y\n{row}\n")
    assert rows_of(path) == (["x", "z"], ["y", "y"])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "npz", "folder"])
def test_labels_are_read_for_the_classes_of_the_model(tmp_path, kind):
    """A class that is called exactly so is kept; from other labels, blanks around are removed."""
    path = tmp_path / f"a.{kind}"

    def write(*labels):
        texts = ["x"] * len(labels)
        if kind == "csv":
            write_csv(path, "text,label\n" + "".join(f"x,{label}\n" for label in labels))
        elif kind == "jsonl":
            path.write_text("".join(json.dumps({"text": "x", "label": i}) + "\n" for i in labels))
        elif kind == "parquet":
            write_parquet(path, {"text": texts, "label": list(labels)})
        elif kind == "npz":
            np.savez(path, features=np.zeros((len(labels), 2)), labels=np.array(labels))
        else:
            for label in labels:
                (path / label).mkdir(parents=True)
                (path / label / "x.png").touch()

    def read_labels(classes):
        (batch,) = open_table(path, classes=classes).batches()
        return batch.labels

    write("a\u00a0", " b ", "12")
    assert sorted(read_labels({"a\u00a0": 3, "b": 1})) == ["12", "a\u00a0", "b"]
    assert sorted(read_labels(())) == ["12", "a", "b"]
    with pytest.raises(TableError, match=r"(line|row) .*is not an integer, but the classes"):
        read_labels([1, 2])
    if kind == "folder":
        (path / "a\u00a0").rename(path / "-7")
        (path / " b ").rename(path / "007")
    else:
        write("-7", " 007 ", "12")
    assert sorted(read_labels([1, 2])) == [-7, 7, 12]


@pytest.mark.parametrize("label", ["1_000", "\u0663", "1.0", ""])
def test_only_plain_digits_are_integers(label):
    with pytest.raises(KldaError, match="is not an integer"):
        as_label(label, [1])


def test_a_name_is_what_can_be_seen_of_it():
    assert as_label(" \u200ecafe\u0301\u00a0\u200b", ()) == "café"
    assert as_label("cafe\u0301", ["cafe\u0301"]) == "cafe\u0301"  # the model has it
    assert similar_names(["cafe\u0301"], ["café"]) == {"cafe\u0301": "café"}


def test_reading_several_files_tells_how_much_of_all_was_read(tmp_path):
    for name, rows in (("a.csv", 4000), ("b.csv", 12000)):
        lines = ["text,label", *(f"text number {i:06d},label" for i in range(rows))]
        (tmp_path / name).write_text("\n".join(lines))
    fractions = [batch.fraction for batch in read(open_tables(tmp_path), labels=True)]
    assert fractions == sorted(fractions)
    assert fractions[1] == pytest.approx(0.25, rel=0.01)  # the end of the first file
    assert fractions[-1] == pytest.approx(1)
