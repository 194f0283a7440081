"""Image models that transformers runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from klda.encoders.model_files import ModelFiles
from klda.encoders.options import Options
from klda.encoders.pretrained import PretrainedNetwork, from_folder, hidden_states
from klda.errors import KldaError, require

_CLASS_TOKENS = ("cls_token", "class_embedding", "class_token")


class PretrainedImageNetwork(PretrainedNetwork):
    """A vision model whose features are pooled into one row per image.

    A row is the class token where the network has one (DINOv2, ViT), else the model's own pooled
    output, else the mean over positions; of layers other than the last, the class token or the
    mean.
    """

    def __init__(self, files: ModelFiles, options: Options) -> None:
        if options.engine == "onnx":
            raise KldaError(
                f'engine="onnx" runs text models; {files.name!r} takes images. Leave it out.'
            )
        pillow = require("PIL.Image", "images")
        super().__init__("AutoModel", files, options)
        # CLIP and similar models also have a text half, and pool the image half themselves.
        tower = getattr(self.model, "vision_model", None)
        self.model = self.model if tower is None else tower
        embeddings = getattr(self.model, "embeddings", None)
        has_token = any(getattr(embeddings, token, None) is not None for token in _CLASS_TOKENS)
        self._class_token = tower is None and has_token
        self.pooling = "cls" if self._class_token else "pooled"
        self.pooling += "" if self.layers == "last" else "+unit"
        # The processor that uses Pillow even if torchvision is installed: the two differ in the
        # last bits of a resized image.
        self.processor = from_folder("AutoImageProcessor", files, options, backend="pil")
        self.batch_size = options.batch_size or (64 if self.device.type == "cuda" else 16)
        probe = self.pixels(pillow.new("RGB", (64, 64)))[None]
        states = hidden_states(self.run(all_layers=True, pixel_values=probe))
        self.layers = options.resolve_layers(len(states) - 1, files.name)
        self.dimension = self.rows(probe).shape[1]

    def pixels(self, image: Any) -> np.ndarray:
        """Resize and scale an RGB image."""
        return self.processor(images=[image], return_tensors="np")["pixel_values"][0]

    def rows(self, pixels: np.ndarray) -> np.ndarray:
        """Return one float32 row per image, given the pixels of images of one size."""
        outputs = self.run(all_layers=self.layers != "last", pixel_values=pixels)
        own = None if self._class_token else outputs.get("pooler_output")
        if self.layers == "last" and own is not None:
            return own.flatten(1).float().cpu().numpy()
        return self.pooled(outputs, self._pool, unit=self.layers != "last")

    def _pool(self, hidden: Any) -> Any:
        if hidden.ndim == 4:  # a convolutional network: channels first
            return hidden.mean(dim=(2, 3))
        return hidden[:, 0] if self._class_token else hidden.mean(dim=1)
