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
        ("kd", {"temperature": 0}, "temperature=0 must be a number larger than 0"),
        ("kd", {"weight": -1}, "weight=-1"),
        ("ewc", {"fisher_samples": 0}, "fisher_samples=0 must be a number at least 1"),
        ("ewc", {"penalty": -3.0}, "penalty=-3.0"),
        ("vanilla", {"head_lr": -1e-3}, "head_lr=-0.001"),
        ("vanilla", {"backbone_lr": float("nan")}, "backbone_lr=nan"),
        ("vanilla", {"clip_norm": 0}, "clip_norm=0"),
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


def test_l2p_cuts_texts_so_that_the_prompts_have_a_place(tiny, fast):
    # 80 places, of which 55 prompt tokens leave 25: the tokenizer would allow 40.
    options = {**fast, "max_length": 40, "epochs": 1}
    method = make("l2p", tiny["bert"], prompt_length=11, top_n=5, **options)
    long = " ".join(["the"] * 60)
    method.learn_task([long, long], ["a", "b"])
    assert len(method.predict([long])) == 1
    with pytest.raises(KldaError, match="prompt_length=16"):
        make("l2p", tiny["bert"], prompt_length=16, top_n=5, **options).learn_task(["the"], ["a"])


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
