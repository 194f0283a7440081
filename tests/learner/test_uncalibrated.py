"""A model that can't tell known inputs from unknown ones still answers and explains."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, LDA, KldaError, Learner

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(centre, 1, (30, 8)) for centre in (-3, 0, 3)]).astype(np.float32)
Y = np.repeat(["ants", "bees", "cats"], 30)
MODELS = {
    "paper": lambda: KLDA.paper(gamma=0.02, random_state=0),
    "klda": lambda: KLDA(n_components=200, gamma=0.02, random_state=0, calibrated=False),
    "lda": lambda: LDA(calibrated=False),
}


@pytest.fixture(params=MODELS)
def learner(request):
    return Learner("features", classifier=MODELS[request.param]()).learn(X, Y)


def test_it_explains(learner):
    explanation = learner.explain(X[0])
    assert explanation.label == learner.predict(X[:1])[0] == "ants"
    assert explanation.threshold is None
    assert explanation.known is None
    assert learner.threshold() is None


def test_it_refuses_to_judge_and_says_why(learner):
    for judge in (learner.is_known, lambda x: learner.predict(x, reject=0.05)):
        with pytest.raises(KldaError, match="calibrated=False"):
            judge(X[:1])


def test_it_answers_over_http(learner, tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from tests.server.conftest import serving

    learner.save(tmp_path / "model")
    with serving(tmp_path / "model") as client:
        answer = client.post("/v1/predict", json={"features": X[:1].tolist()})
        assert answer.status_code == 200, answer.text
        (prediction,) = answer.json()["predictions"]
        assert prediction["label"] == "ants"
        assert prediction["known"] is None
        explained = client.post("/v1/explain", json={"features": X[0].tolist()})
        assert explained.status_code == 200, explained.text
