"""Looking at a model: how good it is, why it answers so, which classes are close."""
