"""Data sets: which are known (``catalog``), reading them (``datasets``), and fetching them.

``downloads`` fetches what is not here, ``archives`` unpacks the archives of image sets.
"""
