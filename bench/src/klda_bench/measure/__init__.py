"""Measurements of klda itself: each is a function that yields rows, and a command."""
