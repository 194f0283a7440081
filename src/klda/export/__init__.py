"""A model taken elsewhere: to other languages as ONNX, to other people over a hub."""
