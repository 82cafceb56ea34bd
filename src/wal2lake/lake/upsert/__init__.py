"""Applies batches in this process: one commit of new rows and deletion vectors.

Takes: staged changes of one table, its state and its live files. Gives: data files and deletion
vectors in the table's directory, and the arguments of the commit that names them. Owns: the net
change by numbered keys, and finding keys in files. Never: Spark, commits, or more than
``apply.upsert_bytes`` of changes in memory.

    runs/       cuts a batch into runs that fit into memory; start here
    files/      the table's files as the runs so far have left them
    plan        evaluates one run
    keys        numbers the keys, and finds their rows in the files
    locating    loads the staged batch, and finds the stored rows that its events mean
    lives/      follows the rows of each key through the batch
    judging     decides about changes that meet another row than the publisher's
    conflicts   reports those, in PostgreSQL's words
    checking    generated columns and constraints of the rows that UPDATEs make
    soft/       rows that are deleted, and stay
    recorded    whole rows before and after each event, for the table's history
    stored      reads rows of data files by row number
    calendar    dates that Spark has written in its legacy calendar
    memory      limits the memory of all batches together
"""

from wal2lake.lake.upsert.memory import TooLarge, UpsertMemory
from wal2lake.lake.upsert.runs.whole import Upsert, plan_upsert
from wal2lake.lake.upsert.soft.recopied import keep_deleted
from wal2lake.lake.upsert.stored import StoredRows, is_plainly_written, is_readable

__all__ = [
    "StoredRows",
    "TooLarge",
    "Upsert",
    "UpsertMemory",
    "is_plainly_written",
    "is_readable",
    "keep_deleted",
    "plan_upsert",
]
