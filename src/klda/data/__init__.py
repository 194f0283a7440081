"""Users' rows, read in batches: a file of a million rows is never in memory as a whole.

The command line, the page, Python and the cluster all read through this package. A `Table` is a
file whose columns are chosen, a `Batch` some of its rows. There are three kinds of rows, named as
the modalities of the foundation models:

- ``text``: CSV, TSV, JSONL, JSON and ``.txt`` (each also as ``.gz``), parquet, Excel workbooks, and
  the training files of fastText and Rasa;
- ``image``: a folder with one folder per class, a folder of images, an ``.npz`` with ``images``, or
  a table with a column of paths;
- ``features``: ``.npy``, ``.npz`` and parquet with rows computed elsewhere.

Readers of `formats` yield the `Contents` of files, of which a `Table` makes checked batches.
"""

from klda.data.batch import GUESSED, START, BadRow, Batch, Layout, Position
from klda.data.cells import as_label
from klda.data.chunks import BATCH_ROWS
from klda.data.damage import BadRowError, TableError
from klda.data.files import identity
from klda.data.formats import open_bytes, open_table, open_tables, read
from klda.data.table import Table

__all__ = [
    "BATCH_ROWS",
    "GUESSED",
    "START",
    "BadRow",
    "BadRowError",
    "Batch",
    "Layout",
    "Position",
    "Table",
    "TableError",
    "as_label",
    "identity",
    "open_bytes",
    "open_table",
    "open_tables",
    "read",
]
