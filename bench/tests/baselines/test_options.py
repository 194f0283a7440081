from __future__ import annotations

import pytest
import torch

from baselines.toys import make
from klda.encoders import OfflineModelError
from klda.errors import KldaError
from klda_bench.methods import registry


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kd", {"temperature": 0}, r"temperature=0 must be a number at least 0\.001"),
        ("kd", {"weight": -1}, "weight=-1"),
        ("ewc", {"fisher_samples": 0}, "fisher_samples=0 must be a number at least 1"),
        ("ewc", {"penalty": -3.0}, "penalty=-3.0"),
        ("vanilla", {"head_lr": -1e-3}, "head_lr=-0.001"),
        ("vanilla", {"backbone_lr": float("nan")}, "backbone_lr=nan"),
        ("vanilla", {"epochs": "ten"}, "epochs='ten'"),
        ("vanilla", {"device": "moon"}, "device='moon'"),
    ],
)
def test_an_option_out_of_range_is_named(tiny, name, options, message):
    with pytest.raises(KldaError, match=message):
        make(name, tiny["bert"], **{"device": "cpu", **options})


def test_a_gpu_that_is_not_here_is_said(tiny):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(KldaError, match="device='cuda'"):
        make("joint", tiny["bert"], device="cuda")


def test_defaults_are_those_of_the_class_and_of_all_methods():
    found = registry()["ewc"].options()
    assert found["fisher_samples"] == 200
    assert (found["epochs"], found["head_lr"]) == (50, 1e-3)
    assert "backbone" not in found


def test_only_a_model_that_is_not_here_is_called_offline(monkeypatch, tiny):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineModelError, match="backbone='nobody/nothing'"):
        make("vanilla", "nobody/nothing", "cpu")

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
    with pytest.raises(KldaError, match="No space left") as caught:
        make("vanilla", tiny["bert"], "cpu")
    assert type(caught.value) is KldaError
