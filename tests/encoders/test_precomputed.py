from __future__ import annotations

import json

import numpy as np
import pytest

from klda import encoders
from klda.errors import KldaError


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64])
def test_rows_are_returned_as_float32(dtype):
    encoder = encoders.load("features")
    rows = np.arange(6).reshape(2, 3).astype(dtype)
    passed = encoder.encode(rows)
    assert passed.dtype == np.float32
    np.testing.assert_array_equal(passed, rows)
    np.testing.assert_array_equal(encoder.encode(rows.tolist()), rows)


def test_precomputed_features_are_an_encoder():
    encoder = encoders.load("anything", modality="features")
    assert isinstance(encoder, encoders.Encoder)
    assert encoder.modality == "features"
    assert json.loads(json.dumps(encoder.fingerprint())) == encoder.fingerprint()


@pytest.mark.parametrize(
    "inputs, says",
    [
        ([1.0, 2.0], r"2-D.*\(2,\)"),
        (np.zeros((2, 2, 2)), "2-D"),
        (np.zeros((2, 0)), "2-D"),
        ([["a", "b"]], "numbers"),
        ([["1", "2"]], "numbers"),
        ([[1.0, 2.0], [3.0]], "numbers"),
        ([[1.0, 2.0], [3.0, np.nan]], "inputs contains NaN.*row 1"),
        ([[1.0, np.inf]], "inputs contains infinity.*row 0"),
        ([[1e300, 1.0]], "inputs contains infinity.*row 0"),
        ([[1 + 2j, 0]], "numbers"),
    ],
)
def test_inputs_that_are_not_rows_of_finite_numbers_are_rejected(inputs, says):
    with pytest.raises(KldaError, match=says):
        encoders.load("features").encode(inputs)


@pytest.mark.parametrize(
    "option",
    [{"device": "bogus"}, {"batch_size": -3}, {"runtime": "x"}, {"layers": "4,5"}, {"layers": "x"}],
)
@pytest.mark.parametrize("model", [{}, {"modality": "features"}])
def test_options_are_checked_though_nothing_runs(model, option):
    (name,) = option
    with pytest.raises(KldaError, match=rf"^{name}\b"):
        encoders.load("features", **model, **option)
