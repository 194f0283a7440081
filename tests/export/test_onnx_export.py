"""What ONNX files answer is what the learner answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from klda import KLDA, LDA, Learner
from klda.data import open_table
from klda.errors import KldaError
from tests.factories import examples

ort = pytest.importorskip("onnxruntime", reason='needs the extra: pip install "klda[minilm]"')
tokenizers = pytest.importorskip("tokenizers")
EXAMPLES = Path(__file__).parents[2] / "examples"


def taught(count):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 16))
    labels = np.arange(count) % 6
    rows = (2 * centres[labels] + rng.normal(size=(count, 16))).astype(np.float32)
    learner = Learner("features", classifier=KLDA(n_components=300, gamma=0.02))
    learner.learn(rows, [f"class {label}" for label in labels])
    strange = rng.normal(size=(20, 16)).astype(np.float32) * 6
    return learner, np.concatenate([rows[:40], strange])


def asked(path, **inputs):
    session = ort.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def same(answers, learner, inputs):
    scores = learner.scores(inputs)
    np.testing.assert_array_equal(answers["label"], learner.predict(inputs).astype(str))
    np.testing.assert_allclose(answers["scores"], scores, atol=1e-4 * np.abs(scores).max())
    np.testing.assert_allclose(answers["probabilities"], learner.predict_proba(inputs), atol=1e-4)
    np.testing.assert_array_equal(answers["known"], learner.is_known(inputs))


@pytest.mark.parametrize("count", [60, 2000], ids=["exact kernel", "random features"])
def test_the_head_answers_as_the_learner(tmp_path, count):
    learner, inputs = taught(count)
    about = learner.export_onnx(tmp_path / "out")
    answers = asked(tmp_path / "out" / "head.onnx", features=inputs)
    same(answers, learner, inputs)
    assert not answers["known"].all()
    assert about["files"] == ["head.onnx", "klda.json"]
    assert json.loads((tmp_path / "out" / "klda.json").read_text())["features"] == 16


def test_thresholds_of_single_classes_hold_in_the_head(tmp_path):
    learner, _ = taught(2000)
    rng = np.random.default_rng(3)
    known = taught(600)[1][:40].repeat(10, axis=0)
    known += rng.normal(size=known.shape).astype(np.float32) / 3
    unknown = known + rng.normal(size=known.shape).astype(np.float32) * 1.5
    learner.tune_unknown(known, unknown, by_class=True)
    assert len(set(learner.refusal.classes.values())) > 1
    learner.export_onnx(tmp_path / "out")
    learner.export_onnx(tmp_path / "strict", reject=0.2)
    asked_of = np.concatenate([known, unknown])
    same(asked(tmp_path / "out" / "head.onnx", features=asked_of), learner, asked_of)
    strict = asked(tmp_path / "strict" / "head.onnx", features=asked_of)["known"]
    np.testing.assert_array_equal(strict, learner.is_known(asked_of, reject=0.2))
    by_class = learner.is_known(asked_of)
    learner.set_refusal(replace(learner.refusal, classes={}))
    assert (learner.is_known(asked_of) != by_class).any()


def test_the_head_of_lda(tmp_path):
    learner = Learner("features", classifier=LDA())
    rng = np.random.default_rng(1)
    labels = np.arange(300) % 3
    rows = (rng.normal(size=(3, 16))[labels] + rng.normal(size=(300, 16)) + 1e3).astype(np.float32)
    learner.learn(rows, labels.tolist())
    learner.export_onnx(tmp_path / "out")
    same(asked(tmp_path / "out" / "head.onnx", features=rows[:50]), learner, rows[:50])


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    learner, _ = taught(60)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(KldaError, match="is not empty"):
        learner.export_onnx(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_too_little_to_tell_unknown_inputs_is_said(tmp_path):
    learner = Learner("features")
    learner.learn(np.eye(4, dtype=np.float32)[:2], ["a", "b"])
    assert not learner.export_onnx(tmp_path / "out")["knows_unknown"]
    assert "known" not in asked(tmp_path / "out" / "head.onnx", features=np.eye(4, dtype="f4"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A learner of texts with its files, questions and expected lines."""
    folder = tmp_path_factory.mktemp("onnx") / "out"
    learner = Learner("minilm")
    data = [each for each in examples("learn") if each.intent < "d"]
    learner.learn([each.text for each in data], [each.intent for each in data])
    learner.export_onnx(folder)
    texts = [each.text for each in examples("test")[:12]] + [
        "Café, naïve — 日本 🙂?",
        "word " * 600,
    ]
    lines = [
        f"{text.strip()}\t{answer.top[0][0]}\t{answer.top[0][1]:.4f}\t"
        f"{'known' if answer.known else 'unknown'}"
        for text, answer in zip(texts, learner.answer(texts), strict=True)
    ]
    return folder, texts, lines


@pytest.mark.data
@pytest.mark.slow
def test_rows_of_a_benchmark_set_get_the_same_answers(tmp_path, data_dir):
    train, test = (
        next(open_table(data_dir / "paper" / "banking" / f"{part}.csv.gz").batches(rows=1 << 20))
        for part in ("train", "test")
    )
    # Every fourth row is enough to fill all classes and to outgrow the kernel to the samples.
    learner = Learner("minilm").learn(train.inputs[::4], list(train.labels[::4]))
    learner.export_onnx(tmp_path / "out")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    session = ort.InferenceSession(tmp_path / "out" / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    parts = []
    texts = test.inputs[::4]
    for start in range(0, len(texts), 64):
        found = tokenizer.encode_batch([text.strip() for text in texts[start : start + 64]])
        feed = {"input_ids": [one.ids for one in found]}
        feed["attention_mask"] = [one.attention_mask for one in found]
        parts.append(session.run(None, {name: np.array(ids) for name, ids in feed.items()}))
    answers = {name: np.concatenate([part[i] for part in parts]) for i, name in enumerate(names)}
    same(answers, learner, texts)


def rounded(output):
    """Lines of an example's output, with probabilities to four digits."""
    found = [line.split("\t") for line in output.strip().splitlines()]
    return ["\t".join([text.strip(), label, f"{float(p):.4f}", k]) for text, label, p, k in found]


def test_the_example_in_python(exported):
    folder, texts, lines = exported
    command = [sys.executable, str(EXAMPLES / "onnx_python.py"), str(folder), *texts]
    assert rounded(subprocess.check_output(command, text=True)) == lines


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm and Node.js")
def test_the_example_in_javascript(exported, tmp_path):
    folder, texts, lines = exported
    shutil.copy(EXAMPLES / "onnx_node.mjs", tmp_path)
    packages = ["onnxruntime-node@1", "@huggingface/tokenizers@0"]
    # Its install script would download libraries for a GPU.
    install = ["npm", "install", "--ignore-scripts", "--no-audit", *packages]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm can't install the packages: {done.stderr[-200:]}")
    command = ["node", "onnx_node.mjs", str(folder), *texts]
    assert rounded(subprocess.check_output(command, cwd=tmp_path, text=True)) == lines
