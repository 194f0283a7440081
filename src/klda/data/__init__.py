"""Reading rows from files, a chunk at a time: a million-row file never sits in memory.

Three kinds of input come out, named as the modalities of the foundation models are:

- ``text``: CSV, TSV, JSONL (each also as ``.gz``), parquet, and ``.txt`` (one text a line);
- ``image``: a folder with one folder a class, a folder of images, an ``.npz`` with ``images``, or a
  table with a column of paths;
- ``features``: ``.npy``, ``.npz`` and parquet with rows computed elsewhere.
"""

from klda.data.chunk import CHUNK_ROWS, Chunk, Columns, Modality, TableError
from klda.data.columns import INPUT_COLUMNS, LABEL_COLUMNS, TEXT_COLUMNS
from klda.data.files import find_files, identity
from klda.data.lines import read_lines
from klda.data.reading import ROWS, Piece, Place, as_label, read
from klda.data.table import Table, open_table

__all__ = [
    "CHUNK_ROWS",
    "INPUT_COLUMNS",
    "LABEL_COLUMNS",
    "ROWS",
    "TEXT_COLUMNS",
    "Chunk",
    "Columns",
    "Modality",
    "Piece",
    "Place",
    "Table",
    "TableError",
    "as_label",
    "find_files",
    "identity",
    "open_table",
    "read",
    "read_lines",
]
