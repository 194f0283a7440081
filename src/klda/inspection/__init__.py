"""Looking at a model and its rows: how good it is, which classes are close, what is odd."""
