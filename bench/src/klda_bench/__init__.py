"""The laboratory of klda: the paper's tables and figures, peers, baselines, speed and scale.

Its commands are ``klda bench ...``; docs/results.md shows what they gave. Every method learns task
by task behind one interface (``klda_bench.methods``), every measurement is a row of plain values in
a JSON Lines file (``klda_bench.results``), and every table is drawn by ``klda_bench.display``.
"""
