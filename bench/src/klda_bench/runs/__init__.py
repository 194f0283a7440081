"""Runs of methods through the class-incremental protocol: one run, and grids of runs."""
