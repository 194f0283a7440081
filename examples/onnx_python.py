"""Ask a model that `klda export` wrote, with onnxruntime and tokenizers alone.

python onnx_python.py FOLDER "where is my card?" ...
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, texts = Path(sys.argv[1]), [text.strip() for text in sys.argv[2:]]
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
session = onnxruntime.InferenceSession(folder / "model.onnx")

encoded = tokenizer.encode_batch(texts)
inputs = {
    "input_ids": np.array([each.ids for each in encoded]),
    "attention_mask": np.array([each.attention_mask for each in encoded]),
}
names = [output.name for output in session.get_outputs()]
answers = dict(zip(names, session.run(None, inputs), strict=True))
for at, text in enumerate(texts):
    known = answers["known"][at] if "known" in answers else True
    label, chance = answers["label"][at], answers["probabilities"][at].max()
    print(f"{text}\t{label}\t{chance:.6f}\t{'known' if known else 'unknown'}")  # noqa: T201
