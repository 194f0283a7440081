from __future__ import annotations

import numpy as np
import pytest
import torch

from baselines.toys import make
from klda.encoders import OfflineModelError
from klda.errors import KldaError
from klda_bench.baselines.backbones import TextEncoder, TextGenerator
from klda_bench.baselines.classifiers import Head
from klda_bench.baselines.training import Rows

CPU = torch.device("cpu")


def same(one, other):
    """Whether two states are equal, tensors bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def rows_of(lengths):
    sequences = [[i + 1] * length for i, length in enumerate(lengths)]
    columns = {"labels": torch.arange(len(lengths))}
    return Rows(sequences={"ids": sequences}, padding={"ids": 0}, columns=columns, device=CPU)


def test_an_epoch_holds_every_sample_once_with_its_own_label_and_mask():
    lengths = np.random.default_rng(0).integers(1, 20, 101)
    rows = rows_of(lengths)
    seen = []
    for batch in rows.batches(8, np.random.default_rng(1)):
        assert batch["ids"].shape == batch["ids_mask"].shape
        assert batch["ids"].shape[1] == lengths[batch["index"].numpy()].max()
        for ids, mask, label in zip(batch["ids"], batch["ids_mask"], batch["labels"], strict=True):
            assert int(mask.sum()) == lengths[label]
            assert set(ids[mask.bool()].tolist()) == {int(label) + 1}
            assert set(ids[~mask.bool()].tolist()) <= {0}
            seen.append(int(label))
    assert sorted(seen) == list(range(101))


def test_batches_differ_between_epochs_and_pad_little():
    lengths = np.random.default_rng(0).integers(1, 60, 512)
    rows, rng = rows_of(lengths), np.random.default_rng(1)
    first = [batch["labels"].tolist() for batch in rows.batches(16, rng)]
    second = list(rows.batches(16, rng))
    assert first != [batch["labels"].tolist() for batch in second]
    padded = sum(batch["ids"].numel() for batch in second)
    assert padded < 1.25 * lengths.sum()


def test_a_grown_head_keeps_its_old_rows_bit_for_bit():
    head = Head(4)
    head.grow(3)
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    head.grow(5)
    assert head.weight.shape == (5, 4)
    assert torch.equal(head.weight[:3], weight)
    assert torch.equal(head.bias[:3], bias)
    features = torch.randn(2, 4)
    torch.testing.assert_close(head(features)[:, :3], features @ weight.T + bias)


@pytest.mark.parametrize("kind", ["bert", "bart", "t5"])
def test_pooling_ignores_padding(tiny, kind):
    encoder = TextEncoder(tiny[kind]).eval()
    ids = encoder.tokenize(["redfox0 the redfox1", "the redfox0 and redfox1 of redfox2"], 16)
    rows = Rows(sequences={"ids": ids}, padding={"ids": 0}, device=CPU)
    alone, together = encoder(rows.take(np.array([0]))), encoder(rows.take(np.array([0, 1])))
    torch.testing.assert_close(together[:1], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_generation_in_a_padded_batch_is_generation_alone(tiny, kind):
    torch.manual_seed(3)
    generator = TextGenerator(tiny[kind]).eval()
    prompts = [generator.ids("redfox0 the"), generator.ids("blueowl1 and of the redfox2 to")]
    together = generator.generate(prompts, max_new_tokens=6)
    alone = [generator.generate([prompt], max_new_tokens=6)[0] for prompt in prompts]
    assert together == alone


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_new_tokens_start_at_the_mean_and_leave_the_others(tiny, kind):
    generator = TextGenerator(tiny[kind])
    before = generator.model.get_input_embeddings().weight.detach().clone()
    token = generator.add_token("<new>")
    assert generator.add_token("<new>") == token
    after = generator.model.get_input_embeddings().weight
    assert torch.equal(after[: len(before)], before)
    assert generator.ids("the <new> of")[1] == token
    if token >= len(before):
        torch.testing.assert_close(after[token], before.mean(0))


def test_an_encoder_only_backbone_cannot_write(tiny):
    with pytest.raises(KldaError, match="writes no text"):
        make("vag", tiny["bert"], "cpu")


def test_divergence_is_an_error_that_names_the_learning_rates(tiny, fast, tasks):
    method = make("vanilla", tiny["bert"], **{**fast, "backbone_lr": 1e30})
    with pytest.raises(KldaError, match=r"backbone_lr=1e\+30"):
        method.learn_task(*tasks.first)


def test_the_same_seed_gives_the_same_model_and_spares_the_global_one(tiny, fast, tasks):
    states = []
    for _ in range(2):
        torch.manual_seed(123)
        expected = torch.rand(3)
        torch.manual_seed(123)
        method = make("vanilla", tiny["bert"], **{**fast, "epochs": 2}, seed=5)
        method.learn_task(*tasks.first)
        method.predict(tasks.first_test[0])
        assert torch.equal(torch.rand(3), expected)
        states.append(method.module.state_dict())
        torch.rand(7)
    assert same(*states)


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
