"""How results are shown: tables on a terminal and in files, plots, and one HTML page of all."""
