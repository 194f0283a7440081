"""EfficientNet-lite0: a small image model whose weights are in a Python package."""

from __future__ import annotations

from typing import Any

import numpy as np

from klda.encoders.model_files import ModelFiles
from klda.encoders.pretrained import device_and_dtype
from klda.encoders.runtime import Layers, RunOptions
from klda_bench.environment import require


class EfficientNetLite:
    """EfficientNet-Lite0: the global average of the last convolution's 1,280 channels."""

    layers: Layers = "last"
    pooling = "average"
    runtime = "torch"
    dimension = 1280
    SIZE = 224

    def __init__(self, files: ModelFiles, options: RunOptions) -> None:
        options.require_last_layer(files.name)
        torch = require("torch", "efficientnet")
        self._resampling = require("PIL.Image", "efficientnet").Resampling.BICUBIC
        package = require("efficientnet_lite_pytorch", "efficientnet")
        self.device, self.dtype = device_and_dtype(options, {})
        self.precision = str(self.dtype).removeprefix("torch.")
        self.batch_size = options.batch_size or (64 if self.device.type == "cuda" else 8)
        network = package.EfficientNet.from_name("efficientnet-lite0")
        weights = torch.load(files.weights[0], map_location="cpu", weights_only=True)
        network.load_state_dict(weights)
        _fold_batch_norms(network.eval().requires_grad_(False))
        # Convolutions are fastest with channels last, on CPUs too.
        self.model = network.to(self.device, self.dtype, memory_format=torch.channels_last)

    def pixels(self, image: Any) -> np.ndarray:
        """Resize and scale an RGB image."""
        resized = image.resize((self.SIZE, self.SIZE), self._resampling)
        return (np.asarray(resized, dtype=np.float32).transpose(2, 0, 1) - 127.0) / 128.0

    def rows(self, pixels: np.ndarray) -> np.ndarray:
        """Return one row per image, given the pixels of images of one size."""
        import torch

        given = torch.from_numpy(pixels).to(self.device, self.dtype)
        with torch.inference_mode():
            features = self.model.extract_features(given.to(memory_format=torch.channels_last))
            return features.mean(dim=(2, 3)).float().cpu().numpy()


def _fold_batch_norms(network: Any) -> None:
    """Fold EfficientNet's frozen batch normalizations into the convolutions before them."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    block_pairs = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    pairs += [(block, *pair) for block in network._blocks for pair in block_pairs]
    for part, convolution, norm in pairs:
        if hasattr(part, convolution):  # a block that does not expand has no such convolution
            fused = fuse_conv_bn_eval(getattr(part, convolution), getattr(part, norm))
            setattr(part, convolution, fused)
            setattr(part, norm, torch.nn.Identity())
