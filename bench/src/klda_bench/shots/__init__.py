"""Accuracy, doubt and unknown inputs by the number of samples per class."""
