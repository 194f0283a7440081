"""The demonstration: twenty intents, first known by their names, then taught, and never forgotten.

Run it with ``python -m klda_bench.demo``.
"""
