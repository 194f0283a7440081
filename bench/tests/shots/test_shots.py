from __future__ import annotations

import csv
import json
import zlib

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from klda_bench.cli import app
from klda_bench.runs import features
from klda_bench.shots import draws, summary
from klda_bench.shots.contenders import PEERS, Answers
from klda_bench.shots.tasks import KINDS, MADE

TOPICS = ("card_arrival", "lost_luggage", "order_pizza", "play_music", "book_hotel", "set_alarm")
FILLER = ("please", "now", "my", "the", "help", "want", "today", "again", "could", "you")


class WordEncoder:
    """Random directions of words, summed: texts that share words are alike."""

    name, modality, dimension = "words", "text", 48

    def encode(self, inputs, *, progress=False):
        rows = [sum(self._word(word) for word in text.split()) for text in inputs]
        rows = np.array(rows, dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def _word(self, word):
        return np.random.default_rng(zlib.crc32(word.encode())).normal(size=self.dimension)

    def fingerprint(self):
        identity = {"revision": "1", "pooling": "sum", "layers": "last"}
        named = {"name": self.name, "modality": self.modality, "dimension": self.dimension}
        return identity | named


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data set of texts: one of the two words of its topic, and filler."""
    monkeypatch.setattr(draws, "load_encoder", lambda backbone, layers: WordEncoder())
    monkeypatch.setattr(features, "load_encoder", lambda *place: WordEncoder())
    rng = np.random.default_rng(0)
    place = tmp_path / "topics"
    place.mkdir()
    for part, count in (("train", 12), ("test", 10)):
        with (place / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for topic in TOPICS:
                for i in range(count):
                    words = [*rng.choice(FILLER, 2), topic.split("_")[i % 2]]
                    writer.writerow([" ".join(words), topic])
    return place


def call(*arguments):
    return CliRunner().invoke(app, ["shots", *(str(argument) for argument in arguments)])


def rows_of(output):
    return [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]


def drawn(kind, y, shots, seed=0):
    return KINDS[kind].draw(y, shots, np.random.default_rng(seed))


def test_a_draw_has_so_many_samples_per_class_and_contains_the_smaller_ones():
    y = np.repeat(["a", "b", "c"], [30, 4, 50])
    few, more = (drawn("shots", y, k, seed=3) for k in (2, 10))
    assert pd.Series(few.labels).value_counts().to_dict() == {"a": 2, "b": 2, "c": 2}
    assert pd.Series(more.labels).value_counts().to_dict() == {"a": 10, "b": 4, "c": 10}
    assert set(few.rows) < set(more.rows)
    assert set(few.rows) != set(drawn("shots", y, 2, seed=4).rows)
    assert sorted(drawn("shots", y, "all").rows) == list(range(len(y)))
    assert len(drawn("shots", y, 0).rows) == 0


def test_rare_classes_have_few_samples_and_the_others_all():
    y = np.repeat([f"class {i:02d}" for i in range(20)], 15)
    task = drawn("rare", y, 2)
    counts = pd.Series(task.labels).value_counts()
    assert len(task.rare) == 2
    assert all(counts[name] == (2 if name in task.rare else 15) for name in np.unique(y))


def test_a_fifth_of_the_labels_is_drawn_again_and_no_row_changes():
    y = np.repeat(np.array(list("abcdefghij")), 200)
    task = drawn("noisy", y, "all")
    assert sorted(task.rows) == list(range(len(y)))
    wrong = np.mean(task.labels != y[task.rows])  # a tenth of those drawn again are the same
    deviation = np.sqrt(0.18 * 0.82 / len(y))
    assert abs(wrong - 0.18) < 5 * deviation


def test_declared_classes_are_five_of_the_first_25_and_have_no_sample():
    y = np.repeat([f"class {i:02d}" for i in range(40)], 10)
    task = drawn("declared", y, 3)
    assert len(task.by_name) == 5
    assert not set(task.by_name) & set(task.labels)
    assert set(task.by_name) | set(task.labels) == {f"class {i:02d}" for i in range(25)}
    assert pd.Series(task.labels).value_counts().to_dict() == dict.fromkeys(set(task.labels), 3)


@pytest.mark.parametrize("name", list(MADE))
def test_made_features_have_all_classes_in_both_parts(name):
    found = MADE[name]()
    assert found.modality == "features"
    for part in (found.train, found.test):
        assert np.bincount(np.unique(part.y, return_inverse=True)[1]).min() > 70
        assert len(set(part.y.tolist())) == 10


def test_measures_of_doubt_are_those_of_a_worked_example():
    truth = np.array(["a", "a", "b", "b"])
    labels, confidence = np.array(["a", "b", "b", "a"]), np.array([0.95, 0.95, 0.55, 0.15])
    known = [True, False, None, None]
    row = draws.measures(Answers(labels, confidence, 1 - confidence, known, 0.75), truth)
    assert row["accuracy"] == 50.0
    assert row["wrong_and_sure"] == 25.0
    assert row["known_refused"] == 25.0  # what can't be judged is not refused
    assert row["expected_accuracy"] == 75.0
    # Bins: two answers at 0.95 of which one is right, one right at 0.55, one wrong at 0.15.
    assert row["calibration_error"] == pytest.approx((2 * 0.45 + 0.45 + 0.15) / 4)
    assert "known_refused" not in draws.measures(Answers(labels, confidence, 1 - confidence), truth)


def test_perfect_probabilities_have_the_calibration_error_of_chance():
    rng = np.random.default_rng(1)
    sure = rng.uniform(0.3, 1, 300)
    labels = np.where(rng.random(300) < sure, "a", "b")
    row = draws.measures(Answers(labels, sure, 1 - sure), np.array(["a"] * 300))
    # Ten bins of about 40 answers each: the mean of ten half-normal errors of that many.
    assert 0.02 < row["calibration_by_chance"] < 0.07
    assert row["calibration_error"] < 2 * row["calibration_by_chance"]


def test_inputs_that_cannot_be_judged_count_as_neither_known_nor_refused():
    names, sure = np.array(["a"] * 4), np.ones(4)
    known = Answers(names, sure, np.array([0.0, 1.0, 2.0, 3.0]), [True, True, False, None])
    unknown = Answers(names, sure, np.array([2.5, 4.0, 5.0, 6.0]), [True, None, None, False])
    row = draws.told_apart(known, unknown)
    assert row["auroc"] == pytest.approx(15 / 16)
    assert row["unknown_taken_for_known"] == 25.0


def test_a_plan_leaves_out_what_would_be_the_same_run():
    plan = draws.ShotsPlan("shots", ["ours", "names", "ncm"], ["clinc"], [0, 1, "all"], 2)
    assert list(plan.cells()) == [
        ("names", 0, 0),
        *[(method, 1, draw) for draw in (0, 1) for method in ("ours", "names", "ncm")],
        *[("ours", "all", 0), ("names", "all", 0), ("ncm", "all", 0)],
        *[("ours", "all", 1), ("names", "all", 1)],
    ]
    noisy = draws.ShotsPlan("noisy", ["ncm"], ["clinc"], ["all"], 2)
    assert list(noisy.cells()) == [("ncm", "all", 0), ("ncm", "all", 1)]


MADE_UP = {"ours": (60.0, 96.0), "ncm": (55.0, 97.0), "lr": (70.0, 80.0)}


def made_up(dataset, minus=0.0, **measures):
    return [
        {"dataset": dataset, "method": method, "shots": shots, "draw": draw}
        | {"accuracy": accuracy - minus + draw}
        | (measures if method == "ours" else {})
        for method, both in MADE_UP.items()
        for shots, accuracy in zip((5, "all"), both, strict=True)
        for draw in (0, 1)
    ]


def test_ours_is_compared_with_the_best_peer_of_each_cell():
    rows = made_up("clinc") + made_up("banking", minus=10.0)
    found = dict(summary.tables(summary._means(rows)))
    apart = found["accuracy less that of the best peer (points)"].set_index("data set")
    assert apart.loc["CLINC"].tolist() == ["-10.0", "-1.0"]
    assert apart.loc["lowest"].tolist() == ["-10.0", "-1.0"]
    mean = found["mean of the data sets"].set_index("method")
    assert mean.loc["klda"].tolist() == ["accuracy (%)", "55.5", "91.5"]


def test_every_target_names_the_cell_that_is_nearest_to_missing_it():
    rows = made_up("clinc", calibration_error=0.03) + made_up("hwu", calibration_error=0.05)
    (title, lines), *_ = summary.sections({"shots": rows})
    assert title.partition(",")[0] == "Targets"
    by_name = {(line[""], line["samples"], line["target"]): line for _, line in lines.iterrows()}
    few = by_name["calibration error", "5 to 64", "at most 0.07"]
    assert (few["found"], few["where"], few["kept"]) == ("0.050", "HWU, k = 5", "yes")
    whole = by_name["calibration error", "all", "at most 0.04"]
    assert (whole["found"], whole["where"], whole["kept"]) == ("0.050", "HWU, all", "NO")
    least = by_name["accuracy (%)", "all", "at least 97"]
    assert (least["found"], least["where"], least["kept"]) == ("96.5", "CLINC, all", "NO")


def test_every_method_answers_and_a_second_call_runs_nothing(folder, tmp_path, monkeypatch):
    output, methods = tmp_path / "out", ",".join(("ours", "names", *PEERS))
    arguments = ("--datasets", folder, "--shots", "0,2,all", "--draws", 2, "--output", output)
    first = call(*arguments, "--methods", methods)
    assert first.exit_code == 0, first.output
    rows = rows_of(output)
    assert {row["method"] for row in rows} == set(methods.split(","))
    for row in rows:
        assert row["accuracy"] > (60 if row["shots"] == "all" else 30), row  # chance is 17
        assert 0 <= row["calibration_error"] <= 1
    whole = next(row for row in rows if row["method"] == "ours" and row["shots"] == "all")
    assert {"expected_accuracy", "known_refused", "wrong_and_sure"} <= set(whole)
    assert "| klda, names | " in (output / "shots.md").read_text()
    monkeypatch.setattr(draws.Arena, "measured", lambda *run: pytest.fail(f"{run} ran again"))
    again = call(*arguments, "--methods", methods)
    assert again.exit_code == 0, again.output
    assert again.stdout == first.stdout
    assert len(rows_of(output)) == len(rows)


def test_a_changed_program_runs_ours_again_and_no_peer(folder, tmp_path, monkeypatch):
    output = tmp_path / "out"
    arguments = ("--datasets", folder, "--shots", "2", "--draws", 1, "--output", output)
    for program in ("one", "other"):
        monkeypatch.setattr(draws, "PROGRAM", program)
        assert call(*arguments, "--methods", "ours,ncm").exit_code == 0
    assert [row["method"] for row in rows_of(output)] == ["ours", "ncm", "ours"]


def test_all_kinds_are_one_page_with_the_targets_first(folder, tmp_path):
    output = tmp_path / "out"
    arguments = ("--datasets", folder, "--shots", "2", "--draws", 1, "--output", output)
    answer = call(*arguments, "--kind", "all")
    assert answer.exit_code == 0, answer.output
    page = (output / "all.md").read_text()
    assert page.index("## Targets") < page.index("## k samples of every class: topics")
    for kind in KINDS.values():
        assert f"## {kind.heading}: topics" in page
    assert {row["what"] for row in rows_of(output)} == set(KINDS)


def test_declared_classes_are_found_by_name_and_the_others_compared(folder, tmp_path):
    output = tmp_path / "out"
    answer = call("--datasets", folder, "--kind", "declared", "--draws", 2, "--output", output)
    assert answer.exit_code == 0, answer.output
    assert "recall of the declared classes" in answer.stdout
    for row in rows_of(output):  # five of the six classes are declared: one was taught
        assert row["samples"] == 12
        assert 0 <= row["declared_recall"] <= 100
        assert row["others_alone"] == 100.0


def test_a_kind_that_the_methods_or_the_classes_rule_out_is_left_out_of_the_page(folder, tmp_path):
    output = tmp_path / "out"
    arguments = ("--datasets", folder, "--shots", "2", "--draws", 1, "--output", output)
    answer = call(*arguments, "--kind", "all", "--methods", "ours")
    assert answer.exit_code == 0, answer.output
    page = (output / "all.md").read_text()
    assert KINDS["rare"].heading in page
    assert KINDS["declared"].heading not in page


@pytest.mark.parametrize("asked", [("--shots", "0", "--methods", "ncm"), ("--kind", "declared")])
def test_nothing_to_measure_is_said_before_anything_is_made(asked, folder, tmp_path):
    for file in folder.iterdir():  # five classes, which would all be known by name alone
        lines = file.read_text().splitlines()
        file.write_text("\n".join(line for line in lines if TOPICS[-1] not in line))
    answer = call("--datasets", folder, *asked, "--output", tmp_path / "out")
    assert answer.exit_code == 1
    assert isinstance(answer.exception, SystemExit)
    assert "nothing to measure" in answer.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "nothing"], "--methods nothing"),
        (["--shots", "1,many"], "--shots 1,many"),
        (["--kind", "rare", "--shots", "0,1"], "--shots 0,1 must be whole numbers from 1 on"),
        (["--kind", "scarce"], "--kind scarce is not one of shots, rare"),
        (["--datasets", ""], "datasets is empty"),
    ],
)
def test_errors_name_the_value(arguments, message):
    answer = call(*arguments)
    assert answer.exit_code == 1
    assert message in answer.stderr
