from __future__ import annotations

import csv
import json
import zlib

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from klda.errors import KldaError
from klda_bench.cli import app
from klda_bench.runs.grid import pack_bits
from klda_bench.shots import draws, summary
from klda_bench.shots.contenders import CONTENDERS, Answers

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
    draws._encoder.cache_clear()
    monkeypatch.setattr(draws.encoders, "load", lambda name, **options: WordEncoder())
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
    yield place
    draws._encoder.cache_clear()


def call(*arguments):
    return CliRunner().invoke(app, ["shots", *(str(argument) for argument in arguments)])


def rows_of(output):
    return [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]


def test_a_draw_has_so_many_samples_per_class_and_contains_the_smaller_ones():
    y = np.repeat(["a", "b", "c"], [30, 4, 50])
    few, more = (draws.draw_rows(y, k, seed=3)[0] for k in (2, 10))
    assert pd.Series(y[few]).value_counts().to_dict() == {"a": 2, "b": 2, "c": 2}
    assert pd.Series(y[more]).value_counts().to_dict() == {"a": 10, "b": 4, "c": 10}
    assert set(few) < set(more)
    assert set(few) != set(draws.draw_rows(y, 2, seed=4)[0])
    assert sorted(draws.draw_rows(y, "all", seed=3)[0]) == list(range(len(y)))
    assert len(draws.draw_rows(y, 0, seed=3)[0]) == 0


def test_rare_classes_have_few_samples_and_the_others_all():
    y = np.repeat([f"class {i:02d}" for i in range(20)], 15)
    rows, rare = draws.draw_rows(y, 2, seed=0, rare=True)
    counts = pd.Series(y[rows]).value_counts()
    assert len(rare) == 2
    assert all(counts[name] == (2 if name in rare else 15) for name in np.unique(y))


def test_measures_of_doubt_are_those_of_a_worked_example():
    truth = np.array(["a", "a", "b", "b"])
    answers = Answers(np.array(["a", "b", "b", "a"]), np.array([0.95, 0.95, 0.55, 0.15]))
    row = draws.measured(answers, truth)
    assert row["accuracy"] == 50.0
    assert row["wrong_and_sure"] == 25.0
    # Bins: two answers at 0.95 of which one is right, one right at 0.55, one wrong at 0.15.
    assert row["calibration_error"] == pytest.approx((2 * 0.45 + 0.45 + 0.15) / 4)
    assert "calibration_error" not in draws.measured(Answers(truth), truth)


def test_inputs_that_cannot_be_judged_count_as_neither_known_nor_refused():
    names = np.array(["a"] * 4)
    known = Answers(names, None, np.array([0.0, 1.0, 2.0, 3.0]), [True, True, False, None])
    unknown = Answers(names, None, np.array([2.5, 4.0, 5.0, 6.0]), [True, None, None, False])
    row = draws.told_apart(known, unknown)
    assert row["auroc"] == pytest.approx(15 / 16)
    assert row["known_refused"] == row["unknown_taken_for_known"] == 25.0
    assert row["unknown_not_judged"] == 50.0


def test_a_plan_leaves_out_what_would_be_the_same_run():
    plan = draws.Plan(["ours", "names", "ncm"], ["clinc"], [0, 1, "all"], 2)
    assert list(plan.cells()) == [
        *[("names", 0, draw) for draw in (0, 1)],
        *[(method, 1, draw) for draw in (0, 1) for method in ("ours", "names", "ncm")],
        *[("ours", "all", 0), ("names", "all", 0), ("ncm", "all", 0)],
        *[("ours", "all", 1), ("names", "all", 1)],
    ]


def made_up(method, shots, draw, right):
    correct = np.arange(10) < right
    row = {"dataset": "clinc", "method": method, "shots": shots, "draw": draw}
    return row | {"accuracy": 10.0 * right, "correct": pack_bits(correct), "test_rows": 10}


def test_ours_is_compared_with_the_best_peer_of_each_cell():
    rights = {"ours": (6, 9), "ncm": (5, 7), "lr": (3, 8), "knn": (9, 10)}
    rows = [
        made_up(method, shots, 0, right)
        for method, both in rights.items()
        for shots, right in zip((1, "all"), both, strict=True)
    ]
    (line,) = summary.ahead(pd.DataFrame(rows)).to_dict("records")
    assert (line[1], line["all"], line["mean"], line["lowest"]) == ("+10.0",) * 4
    paired = summary.paired(pd.DataFrame(rows)).set_index("klda, no names - ...")["mean"]
    assert paired["NCM"].startswith("+20.00 ± ")
    assert paired["nearest neighbours"].startswith("-10.00 ± ")


def test_every_method_answers_and_a_second_call_runs_nothing(folder, tmp_path, monkeypatch):
    output = tmp_path / "out"
    methods = "ours,names,cryptic,ncm,lda,knn,lr-last,lr"
    arguments = ("--datasets", folder, "--shots", "0,2,all", "--draws", 2, "--output", output)
    first = call(*arguments, "--methods", methods)
    assert first.exit_code == 0, first.output
    rows = rows_of(output)
    assert {row["method"] for row in rows} == set(methods.split(","))
    for row in rows:
        assert row["accuracy"] > (60 if row["shots"] == "all" else 30), row  # chance is 17
        assert 0 <= row["calibration_error"] <= 1
    assert (output / "shots.png").stat().st_size > 10_000
    assert "| klda, names | " in (output / "shots.md").read_text()
    monkeypatch.setattr(draws.Arena, "run", lambda *cell: pytest.fail(f"{cell} ran again"))
    again = call(*arguments, "--methods", methods)
    assert again.exit_code == 0, again.output
    assert again.stdout == first.stdout
    assert len(rows_of(output)) == len(rows)


def test_names_help_most_at_one_sample_and_codes_do_not_hurt(folder, tmp_path):
    output = tmp_path / "out"
    arguments = ("--datasets", folder, "--shots", "1", "--draws", 3, "--output", output)
    assert call(*arguments, "--methods", "ours,names,cryptic").exit_code == 0
    means = pd.DataFrame(rows_of(output)).groupby("method").accuracy.mean()
    # One sample has one of the two words of its topic; the name has both.
    assert means["names"] > means["ours"] + 5
    assert means["cryptic"] > means["ours"] - 5


def test_joined_classes_are_as_many_as_asked_for():
    y = np.array(sorted("abcdefg" * 3))
    joined = draws.join_classes(y, 3, seed=0)
    assert sorted(set(joined)) == ["group 1", "group 2", "group 3"]
    assert all(len(set(joined[y == name])) == 1 for name in "abcdefg")
    assert (draws.join_classes(y, 3, seed=1) != joined).any()


def test_joined_classes_are_learned_and_told_in_files_of_their_own(folder, tmp_path):
    output = tmp_path / "out"
    arguments = ("--datasets", folder, "--draws", 1, "--shots", "2", "--output", output)
    answer = call(*arguments, "--joined", 2, "--methods", "ncm,lr")
    assert answer.exit_code == 0, answer.output
    assert "joined at random to 2" in (output / "joined-2.md").read_text()
    assert all(row["samples"] == 2 * 2 for row in rows_of(output))


def test_rare_mode_tells_the_recall_of_the_rare_classes(folder, tmp_path):
    output = tmp_path / "out"
    arguments = ("--datasets", folder, "--draws", 1, "--shots", "1", "--output", output)
    answer = call(*arguments, "--rare", "--methods", "ncm,lr")
    assert answer.exit_code == 0, answer.output
    assert "recall of the rare classes" in answer.stdout
    for row in rows_of(output):
        assert row["samples"] == 5 * 12 + 1
        assert 0 <= row["rare_recall"] <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "nothing"], "methods='nothing'"),
        (["--shots", "1,many"], "shots='1,many'"),
        (["--rare", "--shots", "0,1"], "--rare"),
    ],
)
def test_errors_name_the_value(arguments, message):
    answer = call(*arguments)
    assert answer.exit_code == 1
    assert message in answer.stderr


def test_the_registered_methods_learn_on_their_layers():
    assert {name: CONTENDERS[name].layers for name in ("ncm", "lr-last", "lr", "anacp")} == {
        "ncm": "last",
        "lr-last": "last",
        "lr": "auto",
        "anacp": "auto",
    }
    with pytest.raises(KldaError, match="unheard"):
        draws.Plan(["unheard"], [], [1], 1)
