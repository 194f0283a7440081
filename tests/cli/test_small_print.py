"""Options that were not heard, and words that were not right."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


def words(result):
    return " ".join(result.output.split())


@pytest.mark.parametrize("kind", ["klda", "lda", "ncm"])
def test_the_device_is_for_the_classifier_too(cli, rows, tmp_path, kind):
    given = ("learn", rows("a", "ab"), "--model", tmp_path / "m", "--classifier", kind)
    assert "nowhere" in words(cli(*given, "--device", "nowhere", code=1))
    assert not (tmp_path / "m").exists()
    cli(*given, "--device", "cpu")


@pytest.mark.parametrize("how", [("--explain",), ("--reject",)])
@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_refused_inputs_that_can_not_be_used_is_refused(cli, make, rows, how, share):
    model, ask = make("m", "abc"), rows("ask", "a", count=1)
    said = words(cli("predict", ask, "--model", model, *how, "--refused", share, code=1))
    assert f"{share}.0 must be a share between 0 and 1" in said


def test_the_share_of_refused_inputs_counts_where_answers_are_explained(cli, make, rows):
    model, ask = make("m", "abc"), rows("ask", "a", count=1)
    limits = [
        cli("predict", ask, "--model", model, "--explain", "--refused", share).output
        for share in (0.01, 0.5)
    ]
    assert limits[0] != limits[1]


def test_columns_are_found_whatever_their_case(cli, tmp_path):
    (tmp_path / "rows.csv").write_text("Id,Description,Kind\n1,hello,a\n2,good bye,b\n")
    given = ("learn", tmp_path / "rows.csv", "--model", tmp_path / "m")
    cli(*given, "--input-column", "description", "--label-column", "KIND")
    said = words(cli(*given, "--input-column", "descriptions", "--label-column", "kind", code=1))
    assert "no column 'descriptions'" in said


def test_of_two_columns_that_differ_in_case_the_one_named_is_taken(tmp_path):
    from klda.tables import Columns, open_table

    (tmp_path / "rows.csv").write_text("Text,text,label\nno,yes,a\n")
    table = open_table(tmp_path / "rows.csv", columns=Columns("text", "label"))
    assert next(iter(table.chunks())).inputs == ["yes"]


def test_one_class_is_not_classes(cli, rows, tmp_path):
    learned = words(cli("learn", rows("one", "a", count=1), "--model", tmp_path / "m"))
    assert "Learned 1 sample, 1 new class," in learned
    assert "now knows 1 class from 1 sample." in learned
    assert "1 class from 1 sample" in words(cli("show", "--model", tmp_path / "m"))


def test_serve_says_how_to_begin_a_model(tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    said = words(Cli()("serve", "--model", tmp_path / "nosuch", code=1))
    assert "--new minilm" in said
    assert "klda learn" not in said
