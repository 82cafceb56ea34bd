"""Reads the rows that a client sends in a COPY ... FROM STDIN. Pure.

Takes: the bytes of CopyData messages, divided anywhere, and the options of the format. Gives:
blocks of whole rows, as one Arrow binary array per column, with the line of each row; errors in
PostgreSQL's words. Owns: the division into rows and fields, escapes and quotes, the marks of NULL.
Never: reads the values.

    rows         what all formats give: blocks, errors
    texts        text and CSV: which blocks Arrow reads, which are read line by line
    lines        one line at a time, with all of PostgreSQL's rules
    binaries     the binary format
"""

from wal2lake.wire.copyin.binaries import BinaryRows
from wal2lake.wire.copyin.lines import TextFormat
from wal2lake.wire.copyin.rows import BadFormat, RowBlock
from wal2lake.wire.copyin.texts import TextRows

__all__ = ["BadFormat", "BinaryRows", "RowBlock", "TextFormat", "TextRows"]
