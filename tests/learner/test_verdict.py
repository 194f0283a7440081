from __future__ import annotations

import itertools

import pytest

from klda.learner.verdict import SURE, Verdict, verdict


@pytest.mark.parametrize(
    "probability, known, n",
    [*itertools.product([0.0, 0.5, SURE, 1.0], [True, False, None], [1, 2, 150])],
)
def test_every_answer_has_one_verdict(probability, known, n):
    found = verdict(probability, known, n)
    assert (found is Verdict.NEW) == (known is False)
    assert (found is Verdict.ONE_CLASS) == (n == 1 and known is not False)
    assert (found is Verdict.SURE) == (n > 1 and known is not False and probability >= SURE)
    assert found.has_probability == (found in (Verdict.SURE, Verdict.NOT_SURE))
    assert found.words
