"""Damage model folders at random, and see whether anybody would notice.

    python -m tools.mutate_folders --count 10000 --seed 0

Each mutation damages a copy of a small model folder in one way. The folder is then loaded, asked,
explained, taught, and saved elsewhere, once with verification and once as a folder is read whose
files are all too large to be verified at every load. Folders are of the present format and of
version 0.2.0, as they are in tests/folders.

The run fails if damage changes what a verified model says, or if anything but an error of klda's
comes out, takes longer than 5 seconds, or needs more than 1 GB.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
from tests.factories import LetterCounts

from klda import KLDA, LDA, KldaError, Learner
from klda.data import open_tables, read
from klda.learner.resume import ResumableLearn
from klda.storage import array_files
from klda.storage import folder as storage

OLD = Path(__file__).parent.parent / "tests" / "folders" / "0.2.0"
REFUSED = "compact-of-few-samples"  # undamaged, too

SLOW = 5.0
MOST_MEMORY = 1 << 30
OUTCOMES = ("refused", "no effect", "differs", "foreign", "slow")
DIMENSION = 3
PROBE = np.array([[0, 0, 0], [1, 2, 0], [2.5, 2.5, 2.5], [5, 5, 4], [9, -9, 0]], np.float32)
TEXTS = ["aa bb", "eels", "a day by the sea", "zoo"]
MORE = np.array([[0.5, 0, 1], [2, 3, 2], [6, 5, 5]], np.float32)


# ---------------------------------------------------------------------------------------------
# Folders to be damaged


def rows(seed, names, n=9):
    rng = np.random.default_rng(seed)
    found = [rng.normal(2.5 * i, 1, (n, DIMENSION)) for i in range(len(names))]
    return np.concatenate(found).astype(np.float32), [name for name in names for _ in range(n)]


def taught(classifier, seed, names="abc", keep=None):
    bot = Learner("features", classifier=classifier, keep=keep)
    samples, labels = rows(seed, names)
    ids = [f"{seed}-{i}" for i in range(len(labels))] if keep else None
    return bot.learn(samples, list(labels), ids=ids, source="made.csv")


def klda(size=12, **parameters):
    return KLDA(n_components=size, gamma=0.1, random_state=0, device="cpu", **parameters)


def save_ledger(folder, seed):
    taught(klda(), seed, keep="features").forget(ids=[f"{seed}-4"]).save(folder)


def save_few(folder, seed):
    taught(klda(80), seed, names=[3, 5, 7]).save(folder)


def save_many(folder, seed):
    taught(klda(), seed).save(folder)


def save_lda(folder, seed):
    taught(LDA(device="cpu", dtype="float64"), seed).save(folder)


def save_one_class(folder, seed):
    taught(klda(), seed, names="a").save(folder)


def save_compact(folder, seed):
    taught(klda(), seed).save(folder, compact=True)


def save_names(folder, seed):
    bot = Learner(LetterCounts(), classifier=klda(40)).declare({"beach": None, "night": "dark"})
    bot.learn(["a day at the sea", "old zoo" + seed * "o"], ["beach", "zoo"]).save(folder)


class CutOffError(Exception):
    """What a kill is to a process."""


def save_progress(folder, seed):
    """Make the checkpoint of a learn that was cut off after the first of two files."""
    for i, names in enumerate(("cab", "bd")):
        samples, labels = rows(10 * seed + i, names)
        np.savez(folder.parent / f"{folder.name}-{i}.npz", features=samples, labels=labels)
    cut_off = folder.parent / f"{folder.name}-cut-off"
    learn, batches = resumable(cut_off, folder)

    def until_cut_off():
        yield next(batches)
        raise CutOffError

    with suppress(CutOffError):
        learn.learn(learner_of_progress(), until_cut_off())
    (cut_off / storage.LEARNING).rename(folder)


def resumable(target, folder):
    name = folder.name.removeprefix("damaged-")
    tables = open_tables([folder.parent / f"{name}-{i}.npz" for i in range(2)])
    learn = ResumableLearn(target, tables, every=1e-9)
    learn.open(resume=True)
    return learn, read(tables, labels=True, start=learn.place)


def learner_of_progress():
    return Learner("features", classifier=klda(), keep="features")


MAKERS = {
    name.removeprefix("save_"): maker
    for name, maker in list(globals().items())
    if name.startswith("save_")
}


def read_document(folder):
    return json.loads((folder / "model.json").read_text(encoding="utf-8"))


def write_document(folder, document):
    (folder / "model.json").write_text(json.dumps(document, indent=2), encoding="utf-8")


# ---------------------------------------------------------------------------------------------
# Use of a folder


def use(folder, elsewhere, verify):
    """Return all that a folder says, when it is used in every way."""
    said = use_progress if "progress" in folder.name else use_model
    return said(folder, elsewhere, verify)


def use_model(folder, elsewhere, verify):
    own = {"model": LetterCounts()} if "names" in folder.name else {}
    bot = Learner.load(folder, verify=verify, **own)
    said = [bot.classes, bot.declared, bot.history, bot.foundation, repr(bot), answers(bot)]
    said.append(bot.explain(probe(bot)[1]).to_dict())
    compact = storage.load(folder, verify=verify).document["compact"]
    if bot.ledger is not None:
        said += [ids_of(bot), bot.ledger.counts, bot.ledger.numbers_by_id]
        bot.forget(ids=ids_of(bot)[:2])
    if not compact:
        known = list(bot.classes)
        bot.forget(known[0])
        bot.undo()
        said.append(bot.classes)
        more = probe(bot)[:3] if own else MORE
        bot.learn(more, [known[i % len(known)] for i in range(len(more))])
        said.append(answers(bot))
    bot.save(elsewhere, compact=bool(compact))
    said.append(answers(Learner.load(elsewhere, verify=True, **own)))
    return said


def use_progress(folder, elsewhere, verify):
    """Resume the learn; the checkpoint is always verified."""
    elsewhere.mkdir()
    shutil.copytree(folder, elsewhere / storage.LEARNING, symlinks=True, copy_function=os.link)
    learn, batches = resumable(elsewhere, folder)
    bot = learner_of_progress()
    learn.learn(bot, batches)
    bot.save(elsewhere.with_name("elsewhere-too"), overwrite=True)
    return [learn.samples, bot.classes, ids_of(bot), answers(bot)]


def probe(bot):
    return TEXTS if bot.modality == "text" else PROBE


def ids_of(bot):
    return bot.ledger.ids_at(np.arange(len(bot.ledger)))


def answers(bot):
    rows = bot.encode(probe(bot))
    said = [(one.top, one.known, one.novelty) for one in bot.answer_rows(rows, reject=0.1)]
    return [said, bot.solution.scores(rows).tobytes(), bot.threshold(0.1)]


# ---------------------------------------------------------------------------------------------
# Damage: each takes a generator, the folder, and another of the same make

ODD = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**64, 10**30, -(10**18)),
    *(0.0, -0.5, 0.5, 1e-300, 1e300, 1.5e308, -1e300),
    *("", "a", "x" * 300, "\0", "\ud800", "auto", "float64", "uniform", "cuda:99", "LDA", "../x"),
    *([], {}, [[]], [1], ["a"], {"a": 1}, [None], [1, 2, 3], ["a", "b", "c"], ["a", 1]),
]
DEEP = {"[[...]]": ("[" * 5000, "]" * 5000), '{"a":...}': ('{"a":' * 900, "}" * 900)}


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def any_file(rng, folder):
    document = folder / "model.json"
    arrays = sorted(folder.glob("*.safetensors"))
    return document if rng.random() < 0.4 else pick(rng, arrays)


def edit_bytes(rng, folder, change):
    path = any_file(rng, folder)
    content = bytearray(path.read_bytes())
    at = int(rng.integers(len(content)))
    if path.suffix == ".safetensors" and rng.random() < 0.5:  # in the header, or near it
        at = int(rng.integers(min(len(content), 400)))
    change(content, at)
    path.write_bytes(bytes(content))


def flip_bits(rng, folder, other):
    def change(content, at):
        for i in range(at, min(at + int(rng.integers(1, 4)), len(content))):
            content[i] ^= 1 << int(rng.integers(8))

    edit_bytes(rng, folder, change)


def overwrite_bytes(rng, folder, other):
    def change(content, at):
        end = min(at + int(rng.integers(1, 64)), len(content))
        content[at:end] = pick(rng, [b"\0", b"\xff", b"1", b" "]) * (end - at)

    edit_bytes(rng, folder, change)


def insert_bytes(rng, folder, other):
    def change(content, at):
        length = int(rng.integers(1, 32))
        added = bytes(content[at : at + length]) if rng.random() < 0.5 else rng.bytes(length)
        content[at:at] = added

    edit_bytes(rng, folder, change)


def truncate(rng, folder, other):
    path = any_file(rng, folder)
    os.truncate(path, int(rng.integers(path.stat().st_size)))


def lengthen(rng, folder, other):
    path = any_file(rng, folder)
    os.truncate(path, path.stat().st_size + pick(rng, [1, 8, 4096, 1 << 34]))


def places(document):
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield document, key
        if isinstance(value, dict | list):
            yield from places(value)


def place(rng, document):
    return pick(rng, list(places(document)))


def change_value(rng, folder, other):
    document = read_document(folder)
    container, key = place(rng, document)
    container[key] = pick(rng, ODD)
    write_document(folder, document)


def change_number(rng, folder, other):
    document = read_document(folder)
    numbers = [
        (container, key)
        for container, key in places(document)
        if isinstance(container[key], int | float) and not isinstance(container[key], bool)
    ]
    container, key = pick(rng, numbers)
    value = container[key]
    container[key] = pick(rng, [value + 1, value - 1, -value, value * 2, value / 3, float(value)])
    write_document(folder, document)


def swap_values(rng, folder, other):
    document = read_document(folder)
    one, key = place(rng, document)
    there, name = place(rng, document)
    one[key], there[name] = copy.deepcopy(there[name]), copy.deepcopy(one[key])
    write_document(folder, document)


def delete_value(rng, folder, other):
    document = read_document(folder)
    container, key = place(rng, document)
    del container[key]
    write_document(folder, document)


def repeat_key(rng, folder, other):
    document = read_document(folder)
    objects = [found for found in places(document) if isinstance(found[0], dict)]
    container, key = pick(rng, objects)
    container["\1"] = pick(rng, ODD)
    text = json.dumps(document).replace(json.dumps("\1"), json.dumps(key))
    (folder / "model.json").write_text(text)


def nest_deeply(rng, folder, other):
    document = read_document(folder)
    container, key = place(rng, document)
    container[key] = "\1"
    text = json.dumps(document).replace(json.dumps("\1"), "1".join(pick(rng, list(DEEP.values()))))
    (folder / "model.json").write_text(text)


def not_a_number(rng, folder, other):
    document = read_document(folder)
    container, key = place(rng, document)
    container[key] = pick(rng, [float("nan"), float("inf"), -float("inf")])
    write_document(folder, document)


def split(content):
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def change_header(rng, folder, other):
    path = pick(rng, sorted(folder.glob("*.safetensors")))
    header, data = split(path.read_bytes())
    name = pick(rng, sorted(header))
    entry = header[name]
    odd = [-1, 0, 1, 2, 3, 5, 2**31, 2**62, 2**63, True, None, "3", 1.0, []]
    way = rng.integers(7)
    if way == 0:
        entry["shape"] = [pick(rng, odd) for _ in range(rng.integers(1, 4))]
    elif way == 1:
        entry["shape"] = entry["shape"][::-1] if len(entry["shape"]) > 1 else [1, *entry["shape"]]
    elif way == 2:
        entry["dtype"] = pick(rng, ["F64", "F32", "F16", "I64", "I32", "U8", "BOOL", "X", 3, None])
    elif way == 3:
        entry["data_offsets"] = [pick(rng, odd) for _ in range(rng.integers(0, 4))]
    elif way == 4:
        header[name + "x"] = header.pop(name)
    elif way == 5:
        twin = pick(rng, sorted(header))
        header[name], header[twin] = header[twin], header[name]
    else:
        header["shape of many"] = {"dtype": "F32", "shape": [0] * 70, "data_offsets": [0, 0]}
    write_arrays(path, header, data)


def write_arrays(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def change_array(rng, folder, other):
    path = pick(rng, sorted(folder.glob("*.safetensors")))
    header, data = split(path.read_bytes())
    name = pick(rng, sorted(header))
    dtype = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2"}.get(
        header[name]["dtype"], "u1"
    )
    start, end = header[name]["data_offsets"]
    values = np.frombuffer(data[start:end], dtype).copy()
    if not len(values):
        return
    at = slice(None) if rng.random() < 0.2 else int(rng.integers(len(values)))
    odd = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e30, 3e38, 1.0]
    odd = odd if values.dtype.kind == "f" else [0, -1, 1, 5, 127, 255, 2**15, 2**31, 2**62]
    with np.errstate(all="ignore"):
        values[at] = np.asarray(pick(rng, odd)).astype(values.dtype)
    write_arrays(path, header, data[:start] + values.tobytes() + data[end:])


def take_file_of_other(rng, folder, other):
    path = any_file(rng, folder)
    twins = [path] if path.suffix == ".json" else sorted(other.glob("*.safetensors"))
    shutil.copyfile(other / pick(rng, twins).name, path)


def take_data_of_other(rng, folder, other):
    """Put the data of the other folder's arrays under this one's header, where they fit."""
    path = pick(rng, sorted(folder.glob("*.safetensors")))
    part = path.name.rsplit("-", 1)[0]
    _, data = split(path.read_bytes())
    twin = next(other.glob(f"{part}-*.safetensors"), path)
    theirs = split(twin.read_bytes())[1]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - len(data)] + theirs[: len(data)])


def remove_file(rng, folder, other):
    any_file(rng, folder).unlink()


def add_file(rng, folder, other):
    name = pick(rng, ["small-0123456789abcdef.safetensors", "notes.txt", ".new-" + "0" * 32])
    (folder / name).write_bytes(rng.bytes(20))


def replace_file(rng, folder, other):
    path = any_file(rng, folder)
    path.unlink()
    way = rng.integers(6)
    if way == 0:
        path.mkdir()
    elif way == 1:
        path.write_bytes(b"")
    elif way == 2:
        os.mkfifo(path)
    else:
        path.symlink_to(pick(rng, ["/nowhere", path.name, "/dev/zero", other / "model.json", "/"]))


DAMAGE = [
    *(flip_bits, overwrite_bytes, insert_bytes, truncate, lengthen),
    *(change_value, change_value, change_number, swap_values, delete_value, repeat_key),
    *(nest_deeply, not_a_number, change_header, change_header, change_array, change_array),
    *(take_file_of_other, take_data_of_other, remove_file, add_file, replace_file),
]


# ---------------------------------------------------------------------------------------------
# The run


class TooSlow(BaseException):
    """The time is up; not an Exception, so that nothing on the way takes it for one of its own."""


class Run:
    """Makes folders once, then damages copies of them."""

    def __init__(self, work):
        self.work = work
        self.folders = []
        self.expected = {}
        self.counts = Counter()
        self.foreign = []
        self.slowest = 0.0
        for name, make in MAKERS.items():
            pair = [work / f"{name}-{twin}" for twin in "ab"]
            for seed, folder in enumerate(pair):
                make(folder, seed)
            self.folders.append(tuple(pair))
        for old in sorted(path for path in OLD.iterdir() if path.is_dir() and path.name != REFUSED):
            shutil.copytree(old, work / f"{old.name}-{OLD.name}")
        found = sorted(work.glob(f"*-{OLD.name}"))
        self.folders += zip(found, [*found[1:], found[0]], strict=True)
        for folder, _ in self.folders:
            self.expected[folder] = self.use(folder, True)
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def use(self, folder, verify):
        elsewhere = self.work / "elsewhere"
        shutil.rmtree(elsewhere, ignore_errors=True)
        array_files.VERIFIED_UP_TO = -1
        return repr(use(folder, elsewhere, verify))

    def mutate(self, seed, i):
        rng = np.random.default_rng([seed, i])
        folder, other = pick(rng, self.folders)
        damage = pick(rng, DAMAGE)
        damaged = self.work / f"damaged-{folder.name}"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(folder, damaged)
        damage(rng, damaged, other)
        version = OLD.name if folder.name.endswith(OLD.name) else "today"
        for verify in (True, False):
            outcome = self.outcome(damaged, folder, verify, f"{damage.__name__} {folder.name} #{i}")
            self.counts[version, verify, damage.__name__, outcome] += 1

    def outcome(self, damaged, folder, verify, what):
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 2 * SLOW)
        try:
            outcome = (
                "no effect" if self.use(damaged, verify) == self.expected[folder] else "differs"
            )
        except KldaError:
            outcome = "refused"
        except TooSlow:
            outcome = "slow"
        except Exception:
            outcome = "foreign"
            self.foreign.append(f"{what}, verify={verify}\n{traceback.format_exc(limit=-4)}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        took = time.monotonic() - start
        self.slowest = max(self.slowest, took)
        return "slow" if took > SLOW else outcome

    def report(self):
        """Return how many mutations of each kind ended how, and whether that is as it must be."""
        lines = []
        for version, verify in itertools.product(("today", OLD.name), (True, False)):
            title = f"{version}, {'verified' if verify else 'not verified'}"
            lines += ["", " ".join([f"{title:28}", *map("{:>10}".format, OUTCOMES)])]
            for kind in [*dict.fromkeys(damage.__name__ for damage in DAMAGE), None]:
                found = [self.total(version, verify, kind, outcome) for outcome in OUTCOMES]
                name = "all" if kind is None else kind.replace("_", " ")
                lines.append(" ".join([f"{name:28}", *map("{:>10,}".format, found)]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self.before
        bad = sum(n for key, n in self.counts.items() if key[3] in ("foreign", "slow"))
        silent = sum(self.total(each, True, None, "differs") for each in ("today", OLD.name))
        lines += ["", *self.foreign[:20]]
        lines.append(f"slowest: {self.slowest:.2f} s; memory beyond the start: {peak / 1e6:.0f} MB")
        lines.append(f"different though verified: {silent}; foreign or slow: {bad}")
        return "\n".join(lines), not silent and not bad and peak < MOST_MEMORY

    def total(self, version, verify, kind, outcome):
        return sum(
            n
            for (v, on, name, found), n in self.counts.items()
            if (v, on, found) == (version, verify, outcome) and kind in (None, name)
        )


def on_alarm(signum, frame):
    raise TooSlow


def main():
    """Run as a command; exit 1 if damage went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one mutation")
    options = parser.parse_args()
    # A folder that names a GPU imports torch, whose seconds are not the folder's.
    with suppress(ImportError):
        import_module("torch")
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    signal.signal(signal.SIGALRM, on_alarm)
    memory = Path("/dev/shm")  # saves are synced, which takes its time on a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as work:
        run = Run(Path(work))
        numbers = range(options.count) if options.only is None else [options.only]
        for i in numbers:
            run.mutate(options.seed, i)
        report, passed = run.report()
    sys.stdout.write(report + "\n")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
