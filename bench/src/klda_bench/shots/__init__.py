"""Accuracy, calibration and unknown inputs by the number of samples per class."""
