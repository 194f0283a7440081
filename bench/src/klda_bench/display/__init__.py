"""How results are shown: tables on a terminal and in files, and plots."""
