"""Parses WAIT FOR LSN, PostgreSQL 19's statement, with the option SUBSCRIPTION.

Comes in: a cursor behind WAIT. Goes out: a ``WaitForLsn``, whose options are checked as PostgreSQL
checks them, but for the time-out: its units are those of parameters, which the command knows.

Source: gram.y, WaitStmt; ExecWaitStmt() in wait.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from wal2lake.errors import UsageError
from wal2lake.model import Lsn
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import syntax_error
from wal2lake.sql.grammar.maintenance.utilityoptions import (
    UtilityOption,
    boolean_of,
    string_of,
    utility_option,
)


class WaitMode(Enum):
    """Kinds of positions."""

    REPLAY = "standby_replay"
    """Readers see everything below the position."""
    WRITE = "standby_write"
    """Everything below the position has been received."""
    FLUSH = "standby_flush"
    """Everything below the position is durable in the change log."""
    PRIMARY_FLUSH = "primary_flush"
    """Everything below the position is durable in the server's own log."""


@dataclass(frozen=True, slots=True)
class WaitForLsn:
    """WAIT FOR LSN."""

    lsn: Lsn
    mode: WaitMode = WaitMode.REPLAY
    timeout: str | None = None
    """The text of the value; None if there is none."""
    timeout_at: int = 0
    """Position of the option in the text."""
    throws: bool = True
    """False: what ends the wait early is reported by the status, not as an error."""
    subscription: str | None = None
    """None: those of the node's only source."""


def wait_statement(cursor: TokenCursor) -> WaitForLsn:
    """WAIT FOR LSN 'lsn' [WITH (option, ...)]."""
    cursor.expect("for", "lsn")
    text = cursor.string()
    options: tuple[UtilityOption, ...] = ()
    if cursor.take("with"):
        cursor.expect_mark("(")
        options = cursor.commas(lambda: utility_option(cursor))
        cursor.expect_mark(")")
    cursor.expect_end()
    return _checked(_lsn(text), options)


def _lsn(text: str) -> Lsn:
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise UsageError(str(error), sqlstate="22P02") from None


def _checked(lsn: Lsn, options: tuple[UtilityOption, ...]) -> WaitForLsn:
    by_name: dict[str, UtilityOption] = {}
    for option in options:
        if option.name not in ("mode", "timeout", "no_throw", "subscription"):
            raise syntax_error(f'option "{option.name}" not recognized', option.start)
        if option.name in by_name:
            raise syntax_error("conflicting or redundant options", option.start)
        by_name[option.name] = option
    mode, timeout = by_name.get("mode"), by_name.get("timeout")
    no_throw, subscription = by_name.get("no_throw"), by_name.get("subscription")
    return WaitForLsn(
        lsn,
        WaitMode.REPLAY if mode is None else _mode(mode),
        None if timeout is None else string_of(timeout),
        0 if timeout is None else timeout.start,
        no_throw is None or not boolean_of(no_throw),
        None if subscription is None else string_of(subscription),
    )


def _mode(option: UtilityOption) -> WaitMode:
    text = string_of(option)
    try:
        return WaitMode(text.lower())
    except ValueError:
        raise syntax_error(
            f'unrecognized value for WAIT option "{option.name}": "{text}"',
            option.start,
            sqlstate="22023",
        ) from None
