"""Proof that a copy has exactly the rows of its source.

Takes: a server's session with a snapshot, a version of a lake table, columns and a key. Gives:
whether all rows are equal, and which are not. Owns: the image of a row, its hashes, the division
into blocks. Never: chooses the state that is compared, writes anything.

    forms       the form of each column's values, and why a table cannot be compared
    images      the bytes of a row, made of Arrow columns
    lookup3     PostgreSQL's hash of bytes, for all rows at once
    rowhashes   the hashes of rows
    division    the block of each row
    digests     count and sums of hashes of each block
    statements  the same in SQL
    sides       a server that hashes, and rows that are hashed here
    compare     differing blocks, then differing rows of those that have few
    pairing     the sides of a table and its copy
"""

from wal2lake.verify.compare import (
    Comparison,
    DifferenceKind,
    DifferingRows,
    RowDifference,
    UnreadBlock,
    compare,
    differing_rows,
)
from wal2lake.verify.forms import ColumnForm, NotComparable, ValueForm, form_of
from wal2lake.verify.pairing import CopyPair, pair
from wal2lake.verify.sides import LakeSide, ServerSide, check_hashes
from wal2lake.verify.statements import TableStatements, published_rows, text_of

__all__ = [
    "ColumnForm",
    "Comparison",
    "CopyPair",
    "DifferenceKind",
    "DifferingRows",
    "LakeSide",
    "NotComparable",
    "RowDifference",
    "ServerSide",
    "TableStatements",
    "UnreadBlock",
    "ValueForm",
    "check_hashes",
    "compare",
    "differing_rows",
    "form_of",
    "pair",
    "published_rows",
    "text_of",
]
