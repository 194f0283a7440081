"""A tiny image model of the paper's architecture with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

# As in the published file, for smaller images.
DINOV2_IMAGES = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 32},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 28, "width": 28},
    "do_convert_rgb": True,
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


@pytest.fixture(scope="session")
def tiny_dinov2(tmp_path_factory) -> Path:
    """DINOv2 with four narrow layers on 28-pixel images, and its image processor."""
    pytest.importorskip("PIL")
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    folder = tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=28,
        patch_size=14,
        initializer_range=0.4,
    )
    transformers.Dinov2Model(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(DINOV2_IMAGES))
    return folder
