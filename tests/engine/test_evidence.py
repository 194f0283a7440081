from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from klda import KLDA, LDA, KLDAEnsemble, KldaError
from klda.classifiers import unpack
from klda.engine.evidence import Evidence, Scale, leave_one_out
from tests import reference
from tests.reference import DEVICE


def make(kind=KLDA, **options):
    settings = {"device": DEVICE, "dtype": "float64"}
    if kind is not LDA:
        settings |= {"n_components": 64, "gamma": 0.05, "random_state": 0}
    if kind is KLDAEnsemble:
        settings["n_members"] = 2
    return kind(**(settings | options))


def expected_calibration_error(probabilities, truth, bins=15):
    confidence, right = probabilities.max(1), probabilities.argmax(1) == truth
    places = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        (places == b).mean() * abs(right[places == b].mean() - confidence[places == b].mean())
        for b in np.unique(places)
    ]
    return sum(gaps)


def test_scores_left_out_equal_those_of_a_model_that_never_saw_the_sample():
    X, y = reference.blobs(150, 6, 4)
    model = make(small_sample_correction=False, rule="lda").fit(X, y)
    member, rho = model.model_.members[0], model.solution_.rules[0].rho
    Z = model.model_.backend.to_numpy(member.map.lift(X))
    ours = leave_one_out(member, member.map.lift(X[:20]), y[:20].tolist())[0]
    for i in range(20):
        rest = np.arange(150) != i
        theirs = reference.scores(Z[i : i + 1], Z[rest], y[rest], ridge=1, rho=rho)[0]
        # Relative to another centre and another number of samples: differences, scaled.
        ours_i = (ours[i] - ours[i].mean()) * 149 / 150
        theirs_i = theirs - theirs.mean()
        np.testing.assert_allclose(ours_i, theirs_i, rtol=1e-6, atol=1e-6)


def test_scores_left_out_follow_fresh_models_with_estimated_means_too():
    X, y = reference.blobs(300, 8, 6, spread=2.0)
    model = make().fit(X, y)
    member = model.model_.members[0]
    ours = leave_one_out(member, member.map.lift(X), y.tolist())[0]
    fresh = np.array(
        [
            make().fit(np.delete(X, i, 0), np.delete(y, i)).predict(X[i : i + 1])[0]
            for i in range(0, 300, 6)
        ]
    )
    assert (ours[::6].argmax(1) == fresh).mean() >= 0.96


def test_novelty_is_the_relative_mahalanobis_distance():
    X, y = reference.blobs(200, 6, 5)
    model = make(small_sample_correction=False).fit(X, y)
    test = np.random.default_rng(1).normal(size=(30, 6)) * 3
    Z, z = (
        reference.lifted(model.model_.members[0], X),
        reference.lifted(model.model_.members[0], test),
    )
    _, counts, means, scatter = reference.statistics(Z, y)
    within = (scatter + model.solution_.rules[0].rho * np.eye(64)) / 200
    centre = counts @ means / 200
    spread = (means - centre) * np.sqrt(counts / 200)[:, None]
    total = within + spread.T @ spread
    P, P0 = np.linalg.inv(within), np.linalg.inv(total)
    nearest = np.min([np.einsum("nd,de,ne->n", z - m, P, z - m) for m in means], axis=0)
    overall = np.einsum("nd,de,ne->n", z - centre, P0, z - centre)
    np.testing.assert_allclose(model.novelty(test), nearest - overall, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [KLDA, KLDAEnsemble, LDA])
def test_unknown_inputs_are_told_from_known_ones_at_the_asked_rate(kind):
    X, y = reference.blobs(4000, 10, 12, spread=0.8)
    known = y < 8
    model = make(kind).partial_fit(X[:2000][known[:2000]], y[:2000][known[:2000]])
    test, fresh = X[2000:], known[2000:]
    for refused in (0.05, 0.2):
        accepted = model.is_known(test[fresh], refused=refused)
        assert 1 - accepted.mean() == pytest.approx(refused, abs=0.03)
    assert model.is_known(test[~fresh]).mean() < 0.6
    assert np.median(model.novelty(test[~fresh])) > np.median(model.novelty(test[fresh]))
    by_class = model.is_known(test[fresh], by_class=True)
    assert 1 - by_class.mean() == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("kind", [KLDA, KLDAEnsemble, LDA])
def test_probabilities_are_honest_without_held_out_data(kind):
    # With many components for the samples, plain scores are far too sure of themselves.
    options = {} if kind is LDA else {"n_components": 1000, "dtype": "float32"}
    options["ridge"] = 1e-2
    errors, plain_errors = [], []
    for seed in range(4):  # which samples become probes moves the error of one data set by 0.01
        X, y = reference.blobs(4000, 10, 12, spread=2.5, seed=seed)
        raw = make(kind, calibrated=False, **options).fit(X[:2000], y[:2000])
        model = make(kind, **options).fit(X[:2000], y[:2000])
        test, truth = X[2000:], y[2000:]
        np.testing.assert_array_equal(model.predict(test), raw.predict(test))
        errors.append(expected_calibration_error(model.predict_proba(test), truth))
        plain_errors.append(expected_calibration_error(raw.predict_proba(test), truth))
        assert raw.temperature_ == 1.0
    assert np.mean(errors) < 0.05
    if kind is not LDA:
        assert max(errors) < 0.5 * min(plain_errors)


def test_calibration_survives_a_stream_merging_removing_and_storing():
    X, y = reference.blobs(3000, 10, 12, spread=2.5)
    whole = make().fit(X[:2000], y[:2000])
    stream = make()
    for part in np.array_split(np.argsort(y[:2000], kind="stable"), 6):
        stream.partial_fit(X[part], y[part])
        stream.predict_proba(X[:3])
    halves = [make().partial_fit(X[a:b], y[a:b]) for a, b in ((0, 1000), (1000, 2000))]
    merged = halves[0].merge(halves[1])
    removed = make().partial_fit(X[:2500], y[:2500]).remove(X[2000:2500], y[2000:2500])
    arrays, meta = whole.pack()
    stored = unpack(arrays, json.loads(json.dumps(meta)))
    assert stored.temperature_ == whole.temperature_
    test, truth = X[2500:], y[2500:]
    np.testing.assert_array_equal(stored.is_known(test), whole.is_known(test))
    for model in (stream, merged, removed, stored):
        assert expected_calibration_error(model.predict_proba(test), truth) < 0.12
        assert 0.4 < model.temperature_ / whole.temperature_ < 2.5
        assert 0.005 < 1 - model.is_known(test).mean() < 0.12


def test_a_compact_state_knows_unknown_inputs():
    X, y = reference.blobs(600, 10, 5)
    model = make().fit(X, y)
    arrays, meta = model.pack(compact=True)
    twin = unpack(arrays, json.loads(json.dumps(meta)))
    np.testing.assert_allclose(twin.novelty(X[:50] * 3), model.novelty(X[:50] * 3))
    np.testing.assert_array_equal(twin.is_known(X * 3), model.is_known(X * 3))
    np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))


def test_a_class_that_goes_takes_its_probes_along():
    X, y = reference.blobs(300, 6, 4)
    model = make().fit(X, y)
    assert 2 in model.model_.evidence.labels
    model.forget(2)
    assert 2 not in model.model_.evidence.labels
    before = model.model_.evidence.labels.count(1)
    mine = np.flatnonzero(y == 1)
    model.remove(X[mine[: len(mine) // 2]], y[mine[: len(mine) // 2]])
    assert model.model_.evidence.labels.count(1) == pytest.approx(before / 2, abs=2)
    model.rename(3, 33)
    assert 33 in model.model_.evidence.labels
    assert 3 not in model.model_.evidence.labels


def probes_of(n_samples, inflation, offset=0.0, seed=0):
    """A model of this scale and 500 of its probes; true temperature 1 in units of the inflation."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, 500)
    scores = inflation * (rng.normal(size=(500, 3)) + 2 * np.eye(3)[truth])
    novelty = inflation * rng.normal(size=500) + offset
    return Scale(n_samples, inflation, offset, inflation), truth.tolist(), scores, truth, novelty


def test_the_nearest_probes_count():
    evidence = Evidence()
    for n_samples, novelty in ((100, 7.0), (10_000, 1.0)):
        scale, labels, scores, truth, _ = probes_of(n_samples, 1.0)
        evidence = evidence.add(scale, labels, scores, truth, np.full(500, novelty))
    for n_samples, novelty in ((50, 7.0), (300, 7.0), (5_000, 1.0), (10**6, 1.0)):
        assert evidence.threshold(0.05, Scale(n_samples, 1.0, 0.0, 1.0)) == novelty


@pytest.mark.parametrize("inflation", [1.0, 8.0])
def test_temperature_and_threshold_follow_the_scale_of_the_scores(inflation):
    evidence = Evidence().add(*probes_of(1000, inflation, offset=30.0))
    now = Scale(400, 2.0, 5.0, 2.0)
    assert evidence.temperature(now) == pytest.approx(2.0 * 0.5, rel=0.3)
    assert evidence.threshold(0.05, now) == pytest.approx(2.0 * 1.64 + 5.0, abs=0.6)


def test_probes_that_are_never_mistaken_leave_the_usual_temperature():
    scale, labels, _, truth, novelty = probes_of(1000, 1.0)
    evidence = Evidence().add(scale, labels, 1e4 * np.eye(3)[truth], truth, novelty)
    assert evidence.temperature(scale) == pytest.approx(4.0, rel=0.2)


def test_without_probes_everything_is_known_and_scores_are_taken_as_they_are():
    evidence, scale = Evidence(), Scale(100, 2.0, 1.0, 2.0)
    assert evidence.temperature(scale) == 1.0
    assert evidence.threshold(0.05, scale) == np.inf
    assert evidence.error_rate(scale) == 0.0


def test_the_ridge_follows_the_number_of_samples_alone():
    X, y = reference.blobs(1500, 30, 10)
    model = make(ridge="auto", n_components=600)
    found = []
    for rows in np.array_split(np.arange(1500), 5):
        model.partial_fit(X[rows], y[rows])
        found.append(model.ridge_)
    assert found == pytest.approx([0.2, 0.1, 0.1 * 10 ** -np.log2(1.5), 1e-2, 1e-2])
    arrays, meta = model.remove(X[900:], y[900:]).pack()
    once = make(ridge="auto", n_components=600).partial_fit(X[:900], y[:900])
    assert model.ridge_ == once.ridge_ == found[2]
    assert unpack(arrays, json.loads(json.dumps(meta))).ridge_ == found[2]


@pytest.mark.parametrize("refused", [0, 1, -0.1, 2])
def test_a_share_out_of_range_is_named(refused):
    X, y = reference.blobs(60, 6, 3)
    with pytest.raises(ValueError, match="refused="):
        make().fit(X, y).is_known(X, refused=refused)


@pytest.mark.parametrize("kind", [KLDA, KLDAEnsemble, LDA])
def test_asking_for_labels_judges_nothing_and_changes_nothing(kind):
    X, y = reference.blobs(300, 6, 4)
    asked, silent = make(kind), make(kind)
    for part in np.array_split(np.arange(300), 5):
        silent.partial_fit(X[part], y[part])
        asked.partial_fit(X[part], y[part]).predict(X[:3])
        asked.scores(X[:3])
        asked.novelty(X[:3])
    assert len(asked.model_.evidence) == 0
    np.testing.assert_allclose(asked.temperature_, silent.temperature_, rtol=1e-9)
    np.testing.assert_allclose(asked.threshold(), silent.threshold(), rtol=1e-6)


# ---------------------------------------------------------------- one class, then more


def one_class_then_more(change):
    """A model of one class, changed in some way, that then learns three more; and a plain one."""
    X, y = reference.blobs(800, 6, 4, spread=1.5)
    first = y == 0
    plain = make().partial_fit(X[first], y[first]).partial_fit(X[~first], y[~first])
    model = change(make().partial_fit(X[first], y[first]), X[first], y[first])
    return model.partial_fit(X[~first], y[~first]), plain


CHANGES = {
    "stored": lambda model, X, y: unpack(*model.pack()),
    "merged": lambda model, X, y: make().merge(model),
    "pickled": lambda model, X, y: pickle.loads(pickle.dumps(model)),
    "renamed": lambda model, X, y: model.rename(0, 7).rename(7, 0),
    "removed and back": lambda model, X, y: model.remove(X[:50], y[:50]).partial_fit(
        X[:50], y[:50]
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_samples_of_an_only_class_wait_until_there_is_a_second(change):
    model, plain = one_class_then_more(change)
    assert model.temperature_ == pytest.approx(plain.temperature_, rel=0.02)
    assert model.threshold() == pytest.approx(plain.threshold(), rel=0.05)
    assert model.model_.evidence.labels.count(0) == plain.model_.evidence.labels.count(0) > 50


def test_what_is_removed_does_not_wait_any_more():
    X, y = reference.blobs(200, 6, 1)
    model = make().partial_fit(X, y).remove(X[:150], y[:150])
    assert len(model.model_.waiting.labels) == 50
    np.testing.assert_array_equal(model.model_.waiting.rows, X[150:])
    model.partial_fit(X + 3, np.ones(200, int)).forget(0)
    assert set(model.model_.waiting.labels) == {1}


def test_a_renamed_class_and_a_new_one_of_its_old_name_are_not_mixed_up():
    X, y = reference.blobs(400, 6, 2, spread=1.5)
    a, b = X[y == 0], X[y == 1]
    model = make().partial_fit(a, ["a"] * len(a)).rename("a", "b").partial_fit(b, ["a"] * len(b))
    plain = make().partial_fit(a, ["b"] * len(a)).partial_fit(b, ["a"] * len(b))
    assert model.temperature_ == pytest.approx(plain.temperature_)
    assert model.threshold() == pytest.approx(plain.threshold())


# ---------------------------------------------------------------- judged, then changed


def judged(X, y, **options):
    model = make(n_components=300, gamma=0.005, **options).partial_fit(X, y)
    model.predict_proba(X[:2])
    return model


def refused_share(model, X):
    return 1 - model.is_known(X).mean()


def test_judged_models_stay_calibrated_when_most_of_them_is_removed():
    X, y = reference.blobs(6000, 20, 10, spread=2.0)
    train, test = slice(0, 3000), slice(3000, None)
    model = judged(X[train], y[train])
    few = judged(X[:300], y[:300])
    model.remove(X[300:3000], y[300:3000])
    assert 0.6 < model.temperature_ / few.temperature_ < 1.6
    assert refused_share(model, X[test]) < refused_share(few, X[test]) + 0.08
    error = expected_calibration_error(model.predict_proba(X[test]), y[test])
    assert error < expected_calibration_error(few.predict_proba(X[test]), y[test]) + 0.04


def test_judged_halves_of_the_classes_make_a_calibrated_whole():
    train, test, refused = slice(0, 3000), slice(3000, None), []
    for seed in range(4):
        X, y = reference.blobs(6000, 20, 10, spread=2.0, seed=seed)
        low = y[train] < 5
        halves = [judged(X[train][part], y[train][part]) for part in (low, ~low)]
        merged, whole = halves[0].merge(halves[1]), judged(X[train], y[train])
        assert merged.temperature_ == pytest.approx(whole.temperature_, rel=0.4)
        refused.append(refused_share(merged, X[test]))
        error = expected_calibration_error(merged.predict_proba(X[test]), y[test])
        assert error < expected_calibration_error(whole.predict_proba(X[test]), y[test]) + 0.02
    # Probes of a half know nothing of the classes of the other half: about twice as many as asked.
    assert np.mean(refused) == pytest.approx(0.05, abs=0.06)


def test_another_ridge_forgets_what_was_judged_with_the_old_one():
    X, y = reference.blobs(2000, 20, 10, spread=2.0)
    model = judged(X[:1000], y[:1000])
    model.set_params(ridge=10.0)
    assert model.threshold() == np.inf
    model.partial_fit(X[1000:], y[1000:])
    assert np.isfinite(model.threshold())


def test_a_model_that_judges_nothing_can_not_tell_known_from_unknown():
    X, y = reference.blobs(200, 6, 3)
    for model in (make(calibrated=False).fit(X, y), KLDA.paper(gamma=0.1).fit(X, y)):
        for ask in (model.is_known, lambda X, model=model: model.threshold()):
            with pytest.raises(KldaError, match="calibrated=True"):
                ask(X)
