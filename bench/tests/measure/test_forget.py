from __future__ import annotations

from klda_bench.measure.forget import forget


def test_forgetting_leaves_the_scores_of_a_model_that_never_learned(tmp_path):
    lines = "".join(f"{i} {word} and {word},{word}\n" for i in range(8) for word in "abcdefghij")
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text(f"text,label\n{lines}")
    (row,) = forget(str(tmp_path), backbone="ngrams", seeds=1)
    assert (row["classes"], row["forgotten"]) == (10, 2)
    assert row["relative_error"] < 1e-4
    assert row["same_labels"] == 1
