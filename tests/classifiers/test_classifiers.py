from __future__ import annotations

import copy
import json
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError
from klda.classifiers import KINDS, unpack
from klda.engine.fitted import PredictionOnlyError
from klda.engine.rule import Settings
from klda.engine.solve import RidgeRaisedWarning, solve
from tests import reference
from tests.reference import DEVICE

TOLERANCE = {"float32": 1e-4, "float64": 1e-10}
# Samples are held up to half of this many components; above, there is a square scatter.
SIZES = {"held": 400, "square": 48}


def make(kind, dtype="float64", **parameters):
    options = {"dtype": dtype, "device": DEVICE}
    if kind is not NCM:
        options["ridge"] = 1e-2
    if kind is not NCM and kind is not LDA:
        options |= {"n_components": 48, "gamma": 0.05, "random_state": 0}
    if kind is KLDAEnsemble:
        options["n_members"] = 3
    return kind(**(options | parameters))


ALL = list(KINDS.values())
SOLVED = [KLDA, KLDAEnsemble, LDA]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ALL)
def test_scikit_learn_contract(kind):
    # One check is skipped by scikit-learn itself: check_array_api_input, unless SCIPY_ARRAY_API
    # is set. All others run and pass.
    results = check_estimator(make(kind), on_fail=None)
    by_status = {}
    for result in results:
        by_status.setdefault(result["status"], []).append(result["check_name"])
    assert by_status.pop("skipped", []) in ([], ["check_array_api_input"])
    assert list(by_status) == ["passed"], by_status


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ALL)
def test_scikit_learn_contract_with_default_parameters(kind):
    # float32 can't give a sample the same probability to 1e-7 alone and in a batch.
    excused = {"check_methods_subset_invariance": "float32 rounds to 1e-6"}
    model = kind(n_members=2) if kind is KLDAEnsemble else kind()
    results = check_estimator(model, on_fail=None, expected_failed_checks=excused)
    failed = [r["check_name"] for r in results if r["status"] == "failed"]
    assert failed == []


def expected_scores(model, X_test, X, y):
    parts = []
    for member in model.model_.members:
        lift = (
            (lambda A: np.asarray(A, np.float64))
            if member.map.gamma is None
            else partial(reference.lifted, member)
        )
        parts.append(
            reference.scores(
                lift(X_test),
                lift(X),
                y,
                ridge=model.ridge,
                correct=model.small_sample_correction,
                priors=model.priors,
            )
        )
    return np.mean(parts, axis=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", SOLVED)
@given(seed=st.integers(0, 10_000), n_cuts=st.integers(0, 5), correct=st.booleans())
@settings(max_examples=5, deadline=None)
def test_scores_equal_a_one_shot_dense_solve(kind, size, dtype, seed, n_cuts, correct):
    X, y = reference.blobs(150, 6, 5, seed=seed % 7)
    rng = np.random.default_rng(seed)
    order, cuts = rng.permutation(150), np.sort(rng.choice(np.arange(1, 150), n_cuts, False))
    model = make(kind, dtype, small_sample_correction=correct, priors="empirical")
    if kind is not LDA:
        model.set_params(n_components=SIZES[size], rule="lda")
    for i, part in enumerate(np.split(order, cuts)):
        model.partial_fit(X[part], y[part])
        if i % 2:
            model.predict(X[:3])  # solve in between: the next solve may be a low-rank update
    ours = model.scores(X[:40])
    theirs = expected_scores(model, X[:40], X, y)
    assert reference.relative_error(ours, theirs) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ALL)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_remove_and_merge_equal_learning_what_is_left(kind, size, dtype, seed):
    X, y = reference.blobs(120, 6, 5, seed=seed % 5)
    rng = np.random.default_rng(seed)
    options = {"n_components": SIZES[size]} if kind in (KLDA, KLDAEnsemble) else {}
    part = rng.integers(0, 3, 120)
    expected = make(kind, "float64", **options).partial_fit(X[part > 0], y[part > 0])

    removed = make(kind, dtype, **options).partial_fit(X, y)
    removed.predict(X[:2])
    removed.remove(X[part == 0], y[part == 0])

    merged = make(kind, dtype, **options).partial_fit(X[part == 1], y[part == 1])
    other = make(kind, dtype, **options).partial_fit(X[part == 2], y[part == 2])
    before = other.scores(X[:5])
    merged.merge(other)
    np.testing.assert_array_equal(other.scores(X[:5]), before)

    theirs = expected.scores(X)
    for ours in (removed, merged):
        assert ours.classes_.tolist() == expected.classes_.tolist()
        assert reference.relative_error(ours.scores(X), theirs) < 10 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_thousand_steps_of_adding_and_removing_do_not_drift(dtype):
    X, y = reference.blobs(200, 6, 5)
    model = make(KLDA, dtype).partial_fit(X, y)
    expected = make(KLDA, "float64").partial_fit(X, y).scores(X)
    rng = np.random.default_rng(0)
    for step in range(500):
        extra, labels = rng.normal(size=(4, 6)), rng.integers(0, 8, 4)
        model.partial_fit(extra, labels)
        if step % 10 == 0:
            model.predict(extra)
        model.remove(extra, labels)
    assert model.classes_.tolist() == [0, 1, 2, 3, 4]
    assert reference.relative_error(model.scores(X), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("kind", [KLDA, LDA])
def test_500_low_rank_updates_agree_with_a_fresh_solve(kind):
    X, y = reference.blobs(4000, 40, 20)
    options = {"n_components": 600} if kind is KLDA else {}
    model = make(kind, "float32", **options).partial_fit(X[:3000], y[:3000])
    model.predict(X[:2])
    factorisations = count_factorisations(model)
    for i in range(500):
        model.partial_fit(X[3000 + 2 * i : 3002 + 2 * i], y[3000 + 2 * i : 3002 + 2 * i] + i // 50)
        model.predict(X[:2])
    assert len(factorisations) < (50 if kind is KLDA else 500)
    ours = model.scores(X[:500])
    rule = "auto" if kind is KLDA else "lda"
    theirs = solve(model.model_.copy(), Settings(ridge=1e-2, rule=rule)).scores(X[:500])
    assert reference.relative_error(ours, theirs) < 1e-3
    assert (ours.argmax(1) == theirs.argmax(1)).all()


def count_factorisations(model):
    calls = []
    for member in model.model_.members:
        backend = copy.copy(member.map.backend)
        original = backend.factorise
        backend.factorise = lambda *a, original=original: calls.append(1) or original(*a)
        member.statistics.backend = backend
    return calls


def test_a_small_batch_updates_the_solution_without_a_factorisation():
    X, y = reference.blobs(3000, 20, 10)
    model = make(KLDA, n_components=800).partial_fit(X, y)
    model.predict(X[:2])
    calls = count_factorisations(model)
    model.partial_fit(X[:5] + 4, np.full(5, 99)).predict(X[:2])
    assert not calls
    model.partial_fit(X[:2000], y[:2000]).predict(X[:2])
    assert len(calls) == 1


def test_good_from_the_first_class_on():
    """Accuracy at every moment of the stream, N passing through D, is that of LDA or better."""
    X, y = reference.blobs(1600, 30, 16, spread=2.5)
    X_test, y_test = X[1200:], y[1200:]
    klda = KLDA(n_components=500, random_state=0, device=DEVICE)
    lda = LDA(device=DEVICE)
    for m in range(0, 16, 2):
        now = np.isin(y[:1200], [m, m + 1])
        klda.partial_fit(X[:1200][now], y[:1200][now])
        lda.partial_fit(X[:1200][now], y[:1200][now])
        seen = y_test < m + 2
        assert (
            klda.score(X_test[seen], y_test[seen]) >= lda.score(X_test[seen], y_test[seen]) - 0.02
        )


@pytest.mark.parametrize("kind", ALL)
def test_one_sample_a_class_and_one_class(kind):
    model = make(kind).partial_fit([[1.0, 0.0, 0.2]], ["only"])
    assert model.predict([[5.0, 5.0, 5.0]]).tolist() == ["only"]
    assert model.predict_proba([[5.0, 5.0, 5.0]]).tolist() == [[1.0]]
    model.partial_fit([[0.0, 1.0, 0.1]], ["another"])
    assert model.predict([[0.9, 0.1, 0.2], [0.1, 0.9, 0.0]]).tolist() == ["only", "another"]
    assert np.isfinite(model.scores([[0.9, 0.1, 0.2]])).all()


def test_equal_samples_give_no_nan():
    model = make(KLDA, "float32").partial_fit(np.ones((10, 4)), [0] * 5 + [1] * 5)
    assert np.isfinite(model.predict_proba(np.ones((2, 4)))).all()
    model = make(LDA, "float32").partial_fit(np.zeros((10, 4)), [0] * 5 + [1] * 5)
    assert np.isfinite(model.predict_proba(np.ones((2, 4)))).all()


def test_a_failed_factorisation_raises_the_ridge_and_says_so(monkeypatch):
    X, y = reference.blobs(150, 6, 3)
    model = make(KLDA, n_components=SIZES["square"], rule="lda").partial_fit(X, y)
    backend = type(model.model_.backend)
    original, refusals = backend.factorise, [2]

    def refuse_twice(self, *arguments):
        if refusals[0]:
            refusals[0] -= 1
            return None
        return original(self, *arguments)

    monkeypatch.setattr(backend, "factorise", refuse_twice)
    with pytest.warns(RidgeRaisedWarning, match="ridge raised to"):
        scores = model.scores(X[:5])
    assert np.isfinite(scores).all()


def test_a_failed_update_of_a_kept_factor_leaves_the_ridge_as_it_is(monkeypatch):
    X, y = reference.blobs(150, 6, 3)
    model = make(KLDA, n_components=SIZES["square"], rule="lda").partial_fit(X[:-1], y[:-1])
    model.predict(X[:1])
    model.partial_fit(X[-1:], y[-1:])
    member, backend = model.model_.members[0], type(model.model_.backend)
    kept, attempts = member.precision, []
    assert kept is not None
    monkeypatch.setattr(backend, "small_solver", lambda *_, **__: attempts.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RidgeRaisedWarning)
        scores = model.scores(X[:5])
    assert attempts == [1]
    assert member.precision is not kept
    assert member.precision.rho == kept.rho
    once = make(KLDA, n_components=SIZES["square"], rule="lda").partial_fit(X, y)
    np.testing.assert_allclose(scores, once.scores(X[:5]), rtol=1e-4, atol=1e-4)


def test_class_means_alone_have_no_covariance():
    X, y = reference.blobs(30, 6, 3)
    with pytest.raises(KldaError, match="no covariance"):
        _ = make(NCM).fit(X, y).covariance_


def test_an_ill_conditioned_scatter_never_gives_nan():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 60)) * np.logspace(0, -9, 60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RidgeRaisedWarning)
        model = LDA(ridge=1e-14, device=DEVICE).fit(X, rng.integers(0, 4, 400))
        assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("kind", ALL)
def test_among_answers_within_a_subset(kind):
    X, y = reference.blobs(200, 6, 5)
    names = np.array(["ant", "bee", "cat", "dog", "eel"])
    model = make(kind).partial_fit(X, names[y])
    among = ["eel", "bee", "cat"]
    assert set(model.predict(X, among=among)) <= set(among)
    full = model.scores(X)
    np.testing.assert_allclose(model.decision_function(X, among=among), full[:, [4, 1, 2]])
    np.testing.assert_allclose(model.predict_proba(X, among=among).sum(1), 1)
    assert model.predict(X[:3], among=["dog"]).tolist() == ["dog"] * 3


def test_combine_averages_scores_or_probabilities():
    X, y = reference.blobs(200, 6, 5)
    options = {"n_components": 48, "gamma": 0.05, "dtype": "float64", "device": DEVICE}
    options["calibrated"] = False
    both = [
        KLDAEnsemble(n_members=2, random_state=0, combine=combine, **options).fit(X, y)
        for combine in ("scores", "probabilities")
    ]
    from klda.engine.solution import softmax

    lifted = [member.map.backend.to_numpy(member.map.lift(X)) for member in both[0].model_.members]
    coefficients = zip(both[0].coef_, both[0].intercept_, strict=True)
    parts = [Z @ W.T + b for Z, (W, b) in zip(lifted, coefficients, strict=True)]
    np.testing.assert_allclose(both[0].predict_proba(X), softmax((parts[0] + parts[1]) / 2))
    np.testing.assert_allclose(
        both[1].predict_proba(X), (softmax(parts[0]) + softmax(parts[1])) / 2, atol=1e-12
    )
    assert both[0].coef_.shape == (2, 5, 48)


def test_paper_mode_is_the_papers_formula():
    X, y = reference.blobs(300, 6, 5)
    model = KLDA.paper(gamma=0.05, random_state=0, n_components=64, dtype="float64").fit(X, y)
    assert not model.small_sample_correction
    theirs = expected_scores(model, X, X, y)
    assert reference.relative_error(model.decision_function(X), theirs) < 1e-10
    ensemble = KLDAEnsemble.paper(gamma=0.05)
    assert (ensemble.combine, ensemble.n_members, ensemble.n_components, ensemble.ridge) == (
        "probabilities",
        5,
        5000,
        1e-3,
    )


def test_fitted_attributes():
    X, y = reference.blobs(300, 6, 5)
    model = make(KLDA).partial_fit(X, y)
    labels, counts, means, scatter = reference.statistics(
        reference.lifted(model.model_.members[0], X), y
    )
    np.testing.assert_array_equal(model.classes_, labels)
    np.testing.assert_array_equal(model.class_count_, counts)
    np.testing.assert_allclose(model.means_, means)
    np.testing.assert_allclose(model.covariance_, scatter / 300, atol=1e-12)
    assert model.coef_.shape == (5, 48)
    assert model.intercept_.shape == (5,)
    assert model.gamma_ == 0.05
    assert model.n_features_in_ == 6


@pytest.mark.parametrize("kind", ALL)
def test_inputs_of_all_kinds_give_the_same_answers(kind):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    torch = pytest.importorskip("torch")
    X, y = reference.blobs(100, 6, 4)
    expected = make(kind).fit(X, y).predict_proba(X)
    columns = [f"f{i}" for i in range(6)]
    for frame, target in [
        (pandas.DataFrame(X, columns=columns), pandas.Series(y)),
        (polars.DataFrame(X, schema=columns), polars.Series(y)),
        (torch.from_numpy(X), torch.from_numpy(y)),
        (X.tolist(), y.tolist()),
    ]:
        np.testing.assert_allclose(make(kind).fit(frame, target).predict_proba(frame), expected)


def test_works_in_a_pipeline_and_clones():
    X, y = reference.blobs(100, 6, 4)
    pipeline = make_pipeline(StandardScaler(), make(KLDA)).fit(X, y)
    assert pipeline.score(X, y) > 0.8
    assert clone(make(KLDA, ridge=0.5)).ridge == 0.5


def test_changing_a_parameter_solves_anew():
    X, y = reference.blobs(100, 6, 4)
    model = make(KLDA).partial_fit(X, y)
    before = model.decision_function(X)
    model.set_params(ridge=1.0)
    expected = make(KLDA, ridge=1.0).partial_fit(X, y).decision_function(X)
    np.testing.assert_allclose(model.decision_function(X), expected)
    assert not np.allclose(before, expected)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("size", SIZES)
def test_a_state_survives_a_round_trip_through_json(kind, size):
    X, y = reference.blobs(120, 6, 4)
    options = {"n_components": SIZES[size]} if kind in (KLDA, KLDAEnsemble) else {}
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    model = make(kind, "float32", **options).partial_fit(X[:80], names[:80])
    arrays, meta = model.pack()
    twin = unpack(arrays, json.loads(json.dumps(meta)))
    np.testing.assert_array_equal(twin.scores(X), model.scores(X))
    for each in (model, twin):
        each.partial_fit(X[80:], names[80:])
    error = reference.relative_error(twin.scores(X), model.scores(X))
    assert error < 1e-5


@pytest.mark.parametrize("kind", ALL)
def test_a_compact_state_answers_but_does_not_learn(kind):
    X, y = reference.blobs(120, 6, 4)
    model = make(kind).partial_fit(X, y)
    arrays, meta = model.pack(compact=True)
    assert not [name for name in arrays if name.startswith("learn/")]
    twin = unpack(arrays, meta)
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))
    with pytest.raises(PredictionOnlyError, match="saved compact"):
        twin.partial_fit(X, y)
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))


@pytest.mark.parametrize("kind", ALL)
def test_forget_drops_a_class_and_rename_keeps_its_place(kind):
    X, y = reference.blobs(120, 6, 4)
    model = make(kind).partial_fit(X, y)
    model.predict(X)
    model.forget(1)
    assert model.classes_.tolist() == [0, 2, 3]
    assert 1 not in model.predict(X)
    model.rename(3, 9)
    assert model.classes_.tolist() == [0, 2, 9]
    assert (model.predict(X[y == 3]) == 9).mean() > 0.8


@pytest.mark.parametrize("name", ["novelty", "threshold", "is_known"])
def test_only_classifiers_with_a_covariance_know_the_unknown(name):
    X, y = reference.blobs(120, 6, 4)
    assert not hasattr(make(NCM).fit(X, y), name)
    assert all(hasattr(make(kind).fit(X, y), name) for kind in SOLVED)


@pytest.mark.parametrize("kind", ALL)
def test_answers_in_one_pass_are_those_of_the_single_questions(kind):
    X, y = reference.blobs(300, 6, 4)
    model = make(kind).fit(X[:200], y[:200])
    answers = model.answer(X[200:], top=3, refused=0.1)
    labels, probabilities = model.predict_top(X[200:], 3)
    assert [[label for label, _ in each.top] for each in answers] == labels.tolist()
    found = [[probability for _, probability in each.top] for each in answers]
    np.testing.assert_allclose(found, probabilities, rtol=1e-9)
    if kind is NCM:
        assert {(each.known, each.novelty) for each in answers} == {(None, None)}
    else:
        known = model.is_known(X[200:], refused=0.1).tolist()
        assert [each.known for each in answers] == known
        np.testing.assert_allclose([each.novelty for each in answers], model.novelty(X[200:]))


@pytest.mark.parametrize("kind", ALL)
def test_a_frozen_classifier_answers_as_before_whatever_is_learned_later(kind):
    X, y = reference.blobs(120, 6, 4)
    model = make(kind).partial_fit(X[:80], y[:80])
    frozen, expected = model.frozen(), model.predict_proba(X)
    model.partial_fit(X[80:], y[80:] + 2).forget(0)
    np.testing.assert_array_equal(frozen.predict_proba(X), expected)
    assert frozen.classes_.tolist() == [0, 1, 2, 3]
    with pytest.raises(PredictionOnlyError):
        frozen.partial_fit(X, y)
    np.testing.assert_array_equal(frozen.copy().predict_proba(X), expected)


@pytest.mark.parametrize("kind", ALL)
def test_a_copy_knows_all_and_goes_its_own_way(kind):
    pandas = pytest.importorskip("pandas")
    X, y = reference.blobs(120, 6, 4)
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    model = make(kind).fit(frame, y)
    before, expected = snapshot(model), model.predict_proba(frame)
    twin = model.copy()
    assert snapshot(twin) == before
    assert twin.feature_names_in_.tolist() == list("abcdef")
    np.testing.assert_array_equal(twin.predict_proba(frame), expected)
    twin.partial_fit(frame, y + 1)
    assert snapshot(model) == before
    assert not hasattr(make(kind).copy(), "classes_")


# ------------------------------------------------------------------ bad input


def snapshot(model):
    """Everything a model holds, in a form that compares."""
    if not hasattr(model, "model_"):
        return dict(vars(model))
    state = dict(model.get_params())
    for i, member in enumerate(model.model_.members):
        statistics, to_numpy = member.statistics, model.model_.backend.to_numpy
        state[f"{i}.labels"] = list(statistics.labels)
        state[f"{i}.counts"] = statistics.counts.tolist()
        state[f"{i}.means"] = to_numpy(statistics.means).tobytes()
        state[f"{i}.n"] = statistics.n_scattered
        if statistics.with_scatter:
            state[f"{i}.scatter"] = statistics.scatter().tobytes()
            state[f"{i}.turnover"] = float(statistics.turnover)
        if member.map.gamma is not None:
            state[f"{i}.frequencies"] = to_numpy(member.map.spectrum[0]).tobytes()
    state["waiting"] = (model.model_.waiting.rows.tobytes(), list(model.model_.waiting.labels))
    state["evidence"] = (model.model_.evidence.losses.tobytes(), list(model.model_.evidence.labels))
    state["scores"] = model.scores(np.ones((2, 6)), None).tobytes()
    return state


def bad(X, **changes):
    wrong = X.copy()
    for value in changes.values():
        wrong[2, 3] = value
    return wrong


X_GOOD, Y_GOOD = reference.blobs(60, 6, 3)
BAD_CALLS = {
    "nan": (lambda m: m.partial_fit(bad(X_GOOD, v=np.nan), Y_GOOD), "X contains NaN.*row 2"),
    "infinity": (lambda m: m.partial_fit(bad(X_GOOD, v=np.inf), Y_GOOD), "X contains infinity"),
    "nan at predict": (lambda m: m.predict(bad(X_GOOD, v=np.nan)), "X contains NaN"),
    "empty": (lambda m: m.partial_fit(np.empty((0, 6)), []), "0 sample"),
    "width": (lambda m: m.partial_fit(np.ones((2, 7)), [0, 1]), "7 features.*6 features"),
    "width at predict": (lambda m: m.predict(np.ones((2, 5))), "5 features.*6 features"),
    "lengths": (lambda m: m.partial_fit(X_GOOD, Y_GOOD[:-1]), "60 samples and y has 59"),
    "one-dimensional": (lambda m: m.partial_fit(X_GOOD[0], [0]), "2D array"),
    "unknown label": (lambda m: m.remove(X_GOOD[:2], [0, 77]), "class 77.*never learned"),
    "too many": (lambda m: m.remove(np.tile(X_GOOD, (2, 1)), np.tile(Y_GOOD, 2)), "which has 20"),
    "mixed labels": (lambda m: m.partial_fit(X_GOOD[:2], ["a", "b"]), "use one kind"),
    "label objects": (lambda m: m.partial_fit(X_GOOD[:2], np.array([0, "b"], object)), "labels of"),
    "no labels": (lambda m: m.partial_fit(X_GOOD, None), "requires y"),
    "forget unknown": (lambda m: m.forget(77), "label names class 77"),
    "rename unknown": (lambda m: m.rename(77, 5), "old names class 77"),
    "rename taken": (lambda m: m.rename(0, 1), "new=1 is already a class"),
    "among unknown": (lambda m: m.predict(X_GOOD, among=[0, 77]), "among names class 77"),
    "among empty": (lambda m: m.predict(X_GOOD, among=[]), r"among=\[\]"),
    "among twice": (lambda m: m.predict(X_GOOD, among=[0, 0]), "twice"),
    "other kind": (lambda m: m.merge("a string"), "other is a str"),
    "other width": (
        lambda m: m.merge(make(type(m)).partial_fit(np.ones((3, 4)), [0, 1, 1])),
        "other has 4 input features",
    ),
}


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_named_and_changes_nothing(kind, name):
    call, message = BAD_CALLS[name]
    model = make(kind).partial_fit(X_GOOD, Y_GOOD)
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        call(model)
    assert snapshot(model) == before


@pytest.mark.parametrize("name", ["nan", "empty", "lengths", "one-dimensional", "label objects"])
@pytest.mark.parametrize("kind", ALL)
def test_bad_first_batch_leaves_the_model_unfitted(kind, name):
    call, _ = BAD_CALLS[name]
    model = make(kind)
    before = snapshot(model)
    with pytest.raises(ValueError):
        call(model)
    assert snapshot(model) == before


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"gamma": 0}, "gamma=0"),
        ({"gamma": -1.0}, "gamma=-1.0"),
        ({"gamma": float("nan")}, "gamma=nan"),
        ({"gamma": "wide"}, "gamma='wide'"),
        ({"ridge": 0}, "ridge=0"),
        ({"n_components": 0}, "n_components=0"),
        ({"n_components": 2.5}, "n_components=2.5"),
        ({"random_features": "sobol"}, "random_features='sobol'"),
        ({"priors": "flat"}, "priors='flat'"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"device": "abacus"}, "device='abacus'"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    if "device" in parameters:
        pytest.importorskip("torch", reason="torch is not installed")
    model = make(KLDA, **parameters)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X_GOOD, Y_GOOD)
    assert not hasattr(model, "classes_")


@pytest.mark.parametrize("parameters", [{"n_members": 0}, {"combine": "votes"}])
def test_bad_ensemble_parameters_are_named(parameters):
    (name,) = parameters
    with pytest.raises(KldaError, match=f"{name}="):
        make(KLDAEnsemble, **parameters).fit(X_GOOD, Y_GOOD)


@pytest.mark.parametrize("parameters", [{"random_state": 1}, {"gamma": 0.06}, {"n_components": 50}])
def test_models_with_other_random_features_do_not_merge(parameters):
    model = make(KLDA).partial_fit(X_GOOD, Y_GOOD)
    before = snapshot(model)
    with pytest.raises(KldaError, match="different random features"):
        model.merge(make(KLDA, **parameters).partial_fit(X_GOOD, Y_GOOD))
    assert snapshot(model) == before


@pytest.mark.parametrize("kind", ALL)
def test_prediction_before_any_class(kind):
    model = make(kind)
    with pytest.raises(NotFittedError, match="no classes"):
        model.predict(X_GOOD)
    model.partial_fit(X_GOOD, Y_GOOD).remove(X_GOOD, Y_GOOD)
    with pytest.raises(NotFittedError, match="no classes"):
        model.predict(X_GOOD)
    assert model.partial_fit(X_GOOD, Y_GOOD).score(X_GOOD, Y_GOOD) > 0.8


@pytest.mark.parametrize("kind", ALL)
def test_merging_with_an_empty_model(kind):
    full = make(kind).partial_fit(X_GOOD, Y_GOOD)
    before = snapshot(full)
    full.merge(make(kind))
    assert snapshot(full) == before
    adopted = make(kind).merge(full)
    assert snapshot(adopted) == before
    adopted.partial_fit(X_GOOD, Y_GOOD + 3)
    assert snapshot(full) == before
