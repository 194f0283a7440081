"""Users' rows, read in batches: a file of a million rows is never in memory as a whole.

The command line, the page, Python and the cluster all read through this package. A `Table` is a
file whose columns are chosen, a `Batch` some of its rows. There are three kinds of rows, named as
the modalities of the foundation models:

- ``text``: CSV, TSV, JSONL (each also as ``.gz``), parquet, and ``.txt`` (one text per line);
- ``image``: a folder with one folder per class, a folder of images, an ``.npz`` with ``images``, or
  a table with a column of paths;
- ``features``: ``.npy``, ``.npz`` and parquet with rows computed elsewhere.
"""

from klda.data.batch import BATCH_ROWS, START, Batch, Position, TableError
from klda.data.columns import Columns, as_label
from klda.data.files import identity
from klda.data.formats import open_pasted, open_table, open_tables, read
from klda.data.table import Table
from klda.data.text_files import read_lines

__all__ = [
    "BATCH_ROWS",
    "START",
    "Batch",
    "Columns",
    "Position",
    "Table",
    "TableError",
    "as_label",
    "identity",
    "open_pasted",
    "open_table",
    "open_tables",
    "read",
    "read_lines",
]
