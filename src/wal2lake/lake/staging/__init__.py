"""Converts rows of the change log to typed Parquet: the first half of every batch.

Takes: row files of the log, the target table, the transactions that count. Gives: data files of
the table, or staged changes; and the events that cannot be applied. Owns: conversion of
PostgreSQL's text to the target's types, the layout of staged changes. Never: commits, or the net
change of several events of a key.

Modules: ``layout``, ``historyrows``, ``logrows`` (reading the log), ``convert``, ``rowchanges``,
``stage``, ``wholerows``, ``defaults``, ``generated``, ``rowchecks``. They load without Spark:
executors run them.
"""

from wal2lake.lake.staging.convert import (
    NO_RULES,
    BadValue,
    ConversionRules,
    SentColumn,
    decodes_whole_in_binary,
    mapping_of,
)
from wal2lake.lake.staging.defaults import (
    NO_DEFAULTS,
    ColumnDefaults,
    Fill,
    Fills,
    Volatile,
    behind,
    have_sequences,
)
from wal2lake.lake.staging.generated import computed, inputs_of
from wal2lake.lake.staging.historyrows import (
    HISTORY_WORD,
    NEW,
    NO_COMMITS,
    OLD,
    HistoryCommits,
    HistoryOp,
    HistoryTarget,
    history_rows,
)
from wal2lake.lake.staging.layout import (
    COMMIT,
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    RowConflict,
    RowFailure,
)
from wal2lake.lake.staging.logrows import LogSource, LsnRange, read_log_rows
from wal2lake.lake.staging.rowchanges import incompatible_columns
from wal2lake.lake.staging.rowchecks import CHECK_VIOLATION, Violation, violating
from wal2lake.lake.staging.wholerows import convert_columns

__all__ = [
    "CHECK_VIOLATION",
    "COMMIT",
    "DELETE",
    "HISTORY_WORD",
    "INSERT",
    "NEW",
    "NO_COMMITS",
    "NO_DEFAULTS",
    "NO_RULES",
    "OLD",
    "TRUNCATE",
    "UPDATE",
    "BadValue",
    "ColumnDefaults",
    "ConversionRules",
    "Fill",
    "Fills",
    "HistoryCommits",
    "HistoryOp",
    "HistoryTarget",
    "LogSource",
    "LsnRange",
    "RowConflict",
    "RowFailure",
    "SentColumn",
    "Violation",
    "Volatile",
    "behind",
    "computed",
    "convert_columns",
    "decodes_whole_in_binary",
    "have_sequences",
    "history_rows",
    "incompatible_columns",
    "inputs_of",
    "mapping_of",
    "read_log_rows",
    "violating",
]
