"""Loading networks, tokenizers and image processors through transformers, quietly and safely."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from klda.errors import KldaError, require

# Heads that features never pass through, and parameters that are another one's copy.
_UNUSED = ("pooler", "lm_head", "position_ids", "mask_token", "embed_tokens", "logit_")
_NORMS = ("norm", "final_layer_norm", "final_layernorm", "final_norm", "layernorm", "ln_f")
_WIDE = ("t5", "mt5", "umt5", "longt5", "gemma", "gemma2", "gemma3", "gemma3_text")


def narrow_range(config: dict[str, Any]) -> bool:
    """Say whether float16 is safe for a model.

    Parameters
    ----------
    config : dict
        The model's ``config.json``.

    Returns
    -------
    bool
        False for architectures whose activations overflow it and for weights published in
        bfloat16.
    """
    published = config.get("dtype") or config.get("torch_dtype")
    return config.get("model_type") not in _WIDE and published != "bfloat16"


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Load something without the library's bars and notes, with errors that name the model.

    Parameters
    ----------
    name : str
        The model, for the error.
    """
    logging = require("transformers", "text").utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (KldaError, MemoryError):
        raise
    except Exception as error:  # safetensors, tokenizers and the models raise what they like
        hint = ""
        if "trust_remote_code" in str(error):
            hint = " It runs code of its own: if you trust it, load it with trust_remote_code=True."
        raise KldaError(f"The model {name!r} can't be loaded: {error}{hint}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def load_tokenizer(folder: Path, name: str, *, trust_remote_code: bool) -> Any:
    """Load a tokenizer from a folder.

    Parameters
    ----------
    folder : Path
        The model's folder.
    name : str
        The model, for the error.
    trust_remote_code : bool
        Whether code in the folder may run.

    Returns
    -------
    transformers.PreTrainedTokenizerBase
        The tokenizer.
    """
    transformers = require("transformers", "text")
    with quiet(name):
        return transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )


def load_network(
    folder: Path, name: str, *, kind: str, dtype: Any, device: Any, trust_remote_code: bool
) -> Any:
    """Load a network from a folder, ready to run and frozen.

    Parameters
    ----------
    folder : Path
        The model's folder.
    name : str
        The model, for the error.
    kind : str
        Class of transformers to load it with, as ``"AutoModel"``.
    dtype : torch.dtype
        Number format of its weights.
    device : torch.device
        Where it runs.
    trust_remote_code : bool
        Whether code in the folder may run.

    Returns
    -------
    torch.nn.Module
        The network.

    Raises
    ------
    KldaError
        If the folder lacks some of the weights: transformers would fill them with random numbers.
    """
    transformers = require("transformers", "text")
    loader = getattr(transformers, kind)
    options = {"trust_remote_code": trust_remote_code} if kind == "AutoModel" else {}
    with quiet(name):
        network, report = loader.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, local_files_only=True, **options
        )
    absent = sorted(
        key for key in report["missing_keys"] if not any(part in key for part in _UNUSED)
    )
    if absent:
        raise KldaError(
            f"The model {name!r} in {folder} lacks {len(absent)} of its weights ({absent[0]} ...): "
            "fetch it again."
        )
    network.config.use_cache = False  # nothing is generated
    return network.to(device).eval().requires_grad_(False)


def final_norm(network: Any) -> Any:
    """Find the normalisation that a network applies once, after its last layer.

    Parameters
    ----------
    network : torch.nn.Module
        A transformer.

    Returns
    -------
    torch.nn.Module or None
        None for networks that normalise in every layer's output (BERT, RoBERTa, BART).
    """
    for part in (network, getattr(network, "encoder", None)):
        for name in _NORMS:
            found = getattr(part, name, None)
            if found is not None:
                return found
    return None


def load_image_processor(folder: Path, name: str, *, trust_remote_code: bool) -> Any:
    """Load what resizes and scales images for a model.

    Parameters
    ----------
    folder : Path
        The model's folder.
    name : str
        The model, for the error.
    trust_remote_code : bool
        Whether code in the folder may run.

    Returns
    -------
    transformers.BaseImageProcessor
        The processor that works with Pillow, whether or not torchvision is installed: the two
        differ in the last bits of a resized image.
    """
    transformers = require("transformers", "images")
    recent = int(transformers.__version__.split(".")[0]) >= 5
    options = {"backend": "pil"} if recent else {"use_fast": False}
    with quiet(name):
        return transformers.AutoImageProcessor.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True, **options
        )
