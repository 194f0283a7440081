from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from klda import KLDA, KLDAEnsemble
from klda.engine import random_stream
from klda.engine.arrays import NumpyBackend
from klda.engine.feature_map import RANDOM_FEATURES, Draw, FourierMap
from klda.engine.random_stream import RandomStream

N = 400_000


def stream(key=3):
    return RandomStream(key, NumpyBackend("float64"))


def devices():
    torch = pytest.importorskip("torch")
    from klda.engine.arrays import TorchBackend

    return [
        TorchBackend(device, dtype)
        for device in ("cpu", "cuda")
        for dtype in ("float32", "float64")
        if device == "cpu" or torch.cuda.is_available()
    ]


def test_words_are_those_of_splitmix64():
    # The first outputs of the published C program for the seed 1234567; 53 bits of each are used.
    words = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert stream(1234567).uniform(3).tolist() == [(word >> 11) / 2**53 for word in words]


def test_normal_numbers_have_the_normal_distribution():
    values = stream().normal(N // 100, 100).ravel()
    assert stats.kstest(values, "norm").pvalue > 1e-3
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        powers = values**power
        assert abs(powers.mean() - moment) < 4 * powers.std() / np.sqrt(N)
    assert len(np.unique(values.astype(np.float32))) > 0.9 * N


def test_uniform_numbers_fill_the_interval():
    values = stream().uniform(N)
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert values.min() >= 0
    assert values.max() < 1


def test_how_many_words_are_made_at_once_changes_nothing(monkeypatch):
    whole = stream().normal(51, 30)
    monkeypatch.setitem(random_stream.WORDS_AT_ONCE, "cpu", 100)
    np.testing.assert_array_equal(stream().normal(51, 30), whole)


@pytest.mark.parametrize("lag", [1, 100, N // 2])
def test_numbers_are_not_correlated(lag):
    # Half of the numbers are made of the same words as the other half.
    values = stream().normal(N // 100, 100).ravel()
    for same in (values, values**2):
        assert abs(np.corrcoef(same[:-lag], same[lag:])[0, 1]) < 4.5 / np.sqrt(N - lag)


def test_a_stream_goes_on_where_it_stopped_and_keys_differ():
    one, whole = stream(), stream().uniform(20)
    np.testing.assert_array_equal(one.uniform(10), whole[:10])
    np.testing.assert_array_equal(one.uniform(10), whole[10:])
    assert abs(np.corrcoef(stream(1).uniform(N), stream(2).uniform(N))[0, 1]) < 4.5 / np.sqrt(N)


@pytest.mark.parametrize("kind", RANDOM_FEATURES)
def test_features_are_the_same_to_the_last_bit_on_every_device(kind):
    for backend in devices():
        options = (31, 1001, 0.3, Draw(kind, 7**20))
        host = FourierMap(NumpyBackend(backend.dtype.name), *options)
        there = FourierMap(backend, *options)
        assert there.spectrum[0].device.type == backend.device
        assert host.same_as(there)


def test_seeds_draw_features_of_their_own():
    rows, labels = np.random.default_rng(0).normal(size=(40, 8)), np.arange(40) % 4
    options = {"n_components": 50, "gamma": 0.2}

    def map_of(model):
        return model.partial_fit(rows, labels).model_.map

    first, again, other = (map_of(KLDA(random_state=seed, **options)) for seed in (0, 0, 1))
    ensemble = KLDAEnsemble(KLDA(**options), n_members=3, random_state=0).fit(rows, labels)
    members = [member.model_.map for member in ensemble.members_]
    assert first.same_as(again)
    assert not first.same_as(other)
    assert not members[0].same_as(members[1])
    assert not members[1].same_as(members[2])
