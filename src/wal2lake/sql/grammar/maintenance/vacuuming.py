"""Parses VACUUM, with PostgreSQL's options and DRY_RUN.

Comes in: a cursor behind the word. Goes out: a ``VacuumTables``, whose options are checked as
PostgreSQL checks them: each by itself as it is read, then those that exclude each other.

Source: gram.y, VacuumStmt, utility_option_list; ExecVacuum() in vacuum.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError, UsageError
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind, syntax_error
from wal2lake.sql.grammar.maintenance.utilityoptions import (
    UtilityOption,
    boolean_of,
    utility_option,
)
from wal2lake.sql.grammar.statements import QualifiedName

_MOST_WORKERS: Final = 1024
_LEAST_KB: Final = 128
_MOST_KB: Final = 16_777_216

_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(B|kB|MB|GB|TB)?\s*")
_KB: Final = {"B": 1 / 1024, "kB": 1, "MB": 1024, "GB": 1024**2, "TB": 1024**3}


@dataclass(frozen=True, slots=True)
class VacuumedTable:
    """A table that VACUUM names."""

    name: QualifiedName
    only: bool = False
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VacuumTables:
    """VACUUM."""

    tables: tuple[VacuumedTable, ...]
    """Empty: all tables."""
    verbose: bool = False
    dry_run: bool = False
    full: bool = False
    analyze: bool = False
    without_effect: tuple[str, ...] = ()
    """Names of given options that have no meaning for files, in upper case."""


def vacuum_statement(cursor: TokenCursor) -> VacuumTables:
    """VACUUM [(option, ...) | words] [[ONLY] table [(column, ...)] [*], ...]."""
    if cursor.take_mark("("):
        options = cursor.commas(lambda: utility_option(cursor))
        cursor.expect_mark(")")
    else:
        options = _words(cursor)
    tables: tuple[VacuumedTable, ...] = ()
    if cursor.token.kind is not TokenKind.END:
        tables = cursor.commas(lambda: _table(cursor))
    cursor.expect_end()
    return _checked(options, tables)


def _words(cursor: TokenCursor) -> tuple[UtilityOption, ...]:
    """The form without parentheses, with its words in their only order."""
    options = []
    for words in (("full",), ("freeze",), ("verbose",), ("analyze", "analyse")):
        if cursor.token.is_word(*words):
            options.append(UtilityOption(words[0], None, cursor.next().start))
    return tuple(options)


def _table(cursor: TokenCursor) -> VacuumedTable:
    only = cursor.take("only")
    enclosed = only and cursor.take_mark("(")
    name = cursor.qualified_name()
    if enclosed:
        cursor.expect_mark(")")
    elif not only:
        cursor.take_mark("*")
    columns: tuple[str, ...] = ()
    if cursor.take_mark("("):
        columns = cursor.commas(cursor.name)
        cursor.expect_mark(")")
    return VacuumedTable(name, only, columns)


# ---- options ---------------------------------------------------------------------------


def _checked(
    options: tuple[UtilityOption, ...], tables: tuple[VacuumedTable, ...]
) -> VacuumTables:
    values: dict[str, Any] = {}
    for option in options:
        if option.name not in _READERS:
            raise syntax_error(
                f'unrecognized VACUUM option "{option.name}"', option.start
            )
        values[option.name] = _READERS[option.name](option)
    full, analyze = values.get("full", False), values.get("analyze", False)
    if full and values.get("parallel", 0) > 0:
        raise FeatureNotSupportedError("VACUUM FULL cannot be performed in parallel")
    if full and not analyze and "buffer_usage_limit" in values:
        raise FeatureNotSupportedError(
            "BUFFER_USAGE_LIMIT cannot be specified for VACUUM FULL"
        )
    if not analyze and any(table.columns for table in tables):
        raise FeatureNotSupportedError(
            "ANALYZE option must be specified when a column list is provided"
        )
    if full and values.get("disable_page_skipping"):
        raise FeatureNotSupportedError(
            "VACUUM option DISABLE_PAGE_SKIPPING cannot be used with FULL"
        )
    if full and not values.get("process_toast", True):
        raise FeatureNotSupportedError("PROCESS_TOAST required with VACUUM FULL")
    if values.get("only_database_stats"):
        if tables:
            raise FeatureNotSupportedError(
                "ONLY_DATABASE_STATS cannot be specified with a list of tables"
            )
        allowed = ("verbose", "process_main", "process_toast", "only_database_stats")
        if any(value for name, value in values.items() if name not in allowed):
            raise FeatureNotSupportedError(
                "ONLY_DATABASE_STATS cannot be specified with other VACUUM options"
            )
    meant = ("verbose", "dry_run", "full", "analyze")
    return VacuumTables(
        tables,
        values.get("verbose", False),
        values.get("dry_run", False),
        full,
        analyze,
        tuple(name.upper() for name in values if name not in meant),
    )


def _index_cleanup(option: UtilityOption) -> bool:
    if option.value is not None and option.value.text.lower() == "auto":
        return True
    return boolean_of(option)


def _parallel(option: UtilityOption) -> int:
    if option.value is None:
        raise syntax_error(
            f"parallel option requires a value between 0 and {_MOST_WORKERS}",
            option.start,
        )
    if not option.value.is_integer:
        raise SqlSyntaxError("parallel requires an integer value")
    workers = int(option.value.text)
    if not 0 <= workers <= _MOST_WORKERS:
        raise syntax_error(
            f"parallel workers for vacuum must be between 0 and {_MOST_WORKERS}",
            option.start,
        )
    return workers


def _buffer_usage_limit(option: UtilityOption) -> float:
    if option.value is None:
        raise SqlSyntaxError("buffer_usage_limit requires a parameter")
    size_text = _SIZE.fullmatch(option.value.text)
    size = (
        -1.0 if size_text is None else float(size_text[1]) * _KB[size_text[2] or "kB"]
    )
    if size and not _LEAST_KB <= size <= _MOST_KB:
        raise UsageError(
            "BUFFER_USAGE_LIMIT option must be 0 or between"
            f" {_LEAST_KB} kB and {_MOST_KB} kB",
            sqlstate="22023",
        )
    return size


_READERS: Final[dict[str, Callable[[UtilityOption], Any]]] = {
    "verbose": boolean_of,
    "dry_run": boolean_of,
    "skip_locked": boolean_of,
    "buffer_usage_limit": _buffer_usage_limit,
    "analyze": boolean_of,
    "freeze": boolean_of,
    "full": boolean_of,
    "disable_page_skipping": boolean_of,
    "index_cleanup": _index_cleanup,
    "process_main": boolean_of,
    "process_toast": boolean_of,
    "truncate": boolean_of,
    "parallel": _parallel,
    "skip_database_stats": boolean_of,
    "only_database_stats": boolean_of,
}
