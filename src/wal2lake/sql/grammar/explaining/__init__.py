"""Parses EXPLAIN.

    EXPLAIN [ANALYZE] [VERBOSE] statement
    EXPLAIN (option [value] [, ...]) statement

Takes: a cursor behind EXPLAIN. Gives: an ``Explain`` value, whose statement is text. The options
are checked by ``explain_options``, after the statement, as in PostgreSQL.

Sources: gram.y, ExplainStmt; ParseExplainOptionList() in explain_state.c.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind, syntax_error
from wal2lake.sql.grammar.maintenance.utilityoptions import (
    UtilityOption,
    boolean_of,
    string_of,
    utility_option,
)


class ExplainFormat(Enum):
    """The forms of a plan; the values are those of the option FORMAT."""

    TEXT = "text"
    """One row for each line."""
    XML = "xml"
    """One row; its type is xml."""
    JSON = "json"
    """One row; its type is json."""
    YAML = "yaml"
    """One row of text."""


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """Checked options. Those that a node has nothing to show for are checked and left out."""

    analyze: bool = False
    """Whether the statement is executed."""
    verbose: bool = False
    costs: bool = True
    """Whether numbers of rows and bytes are shown."""
    timing: bool = False
    summary: bool = False
    format: ExplainFormat = ExplainFormat.TEXT


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN."""

    options: tuple[UtilityOption, ...]
    """The options as written, unchecked."""
    query: str
    """The text of the statement."""
    query_start: int = field(default=0, compare=False)
    """The first character of the statement, 0-based, in characters of the whole text."""

    @property
    def format(self) -> ExplainFormat:
        """The format that decides the type of the result; TEXT if the option is wrong."""
        written = [o for o in self.options if o.name == "format"]
        text = written[-1].value.text if written and written[-1].value else ""
        return _FORMATS.get(text, ExplainFormat.TEXT)

    @property
    def is_generic(self) -> bool:
        """Whether GENERIC_PLAN is set, so that parameters need no values."""
        written = [o for o in self.options if o.name == "generic_plan"]
        return any(map(boolean_of, written))


_FORMATS: Final = {form.value: form for form in ExplainFormat}

_FLAGS: Final = frozenset(
    {
        "analyze",
        "verbose",
        "costs",
        "buffers",
        "wal",
        "settings",
        "generic_plan",
        "timing",
        "summary",
        "memory",
    }
)

_SERIALIZATIONS: Final = ("off", "none", "text", "binary")

_STATEMENTS: Final = ("select", "with", "values", "table", "(")


def explain(cursor: TokenCursor) -> Explain:
    """Parse the rest of an EXPLAIN."""
    options: list[UtilityOption] = []
    ahead = cursor.ahead(1)
    is_query = ahead.is_mark("(") or ahead.is_word(*_STATEMENTS)
    if cursor.token.is_mark("(") and not is_query:
        cursor.next()
        options += cursor.commas(lambda: utility_option(cursor))
        cursor.expect_mark(")")
    else:
        if cursor.token.is_word("analyze", "analyse"):
            options.append(UtilityOption("analyze", None, cursor.next().start))
        if cursor.token.is_word("verbose"):
            options.append(UtilityOption("verbose", None, cursor.next().start))
    first = cursor.next()
    if first.kind is TokenKind.END:
        raise cursor.unexpected(first)
    start = first.start
    while cursor.next().kind is not TokenKind.END:
        pass
    return Explain(tuple(options), cursor.text[start : cursor.previous_end()], start)


def explain_options(options: tuple[UtilityOption, ...]) -> ExplainOptions:
    """Check the options; raises 42601 or 22023 with PostgreSQL's messages."""
    flags: dict[str, bool] = {}
    form = ExplainFormat.TEXT
    serializes = False
    for option in options:
        if option.name in _FLAGS:
            flags[option.name] = boolean_of(option)
        elif option.name == "serialize":
            text = "text" if option.value is None else string_of(option)
            if text not in _SERIALIZATIONS:
                raise _unrecognized(option, text)
            serializes = text not in ("off", "none")
        elif option.name == "format":
            text = string_of(option)
            if text not in _FORMATS:
                raise _unrecognized(option, text)
            form = _FORMATS[text]
        else:
            raise syntax_error(
                f'unrecognized EXPLAIN option "{option.name}"', option.start
            )
    analyze = flags.get("analyze", False)
    for name, is_set in (
        ("wal", flags.get("wal", False)),
        ("timing", flags.get("timing", False)),
        ("serialize", serializes),
    ):
        if is_set and not analyze:
            raise UsageError(
                f"EXPLAIN option {name.upper()} requires ANALYZE", sqlstate="22023"
            )
    if analyze and flags.get("generic_plan", False):
        raise UsageError(
            "EXPLAIN options ANALYZE and GENERIC_PLAN cannot be used together",
            sqlstate="22023",
        )
    return ExplainOptions(
        analyze,
        flags.get("verbose", False),
        flags.get("costs", True),
        flags.get("timing", analyze),
        flags.get("summary", analyze),
        form,
    )


def _unrecognized(option: UtilityOption, text: str) -> UsageError:
    error = UsageError(
        f'unrecognized value for EXPLAIN option "{option.name}": "{text}"',
        sqlstate="22023",
    )
    error.position = option.start + 1
    return error
