"""Parses the statements that a session executes itself.

Comes in: the text of one statement. Goes out: a command, or None if the Backend executes the
statement. The session's commands are transaction control, session parameters, and statements about
the session's own prepared statements and portals:

    BEGIN | START TRANSACTION [mode, ...]     COMMIT | END | ROLLBACK | ABORT [AND [NO] CHAIN]
    SAVEPOINT n | RELEASE n | ROLLBACK TO n   PREPARE TRANSACTION, COMMIT|ROLLBACK PREPARED
    SET [SESSION | LOCAL] name {TO | =} v, ..  SET TIME ZONE | NAMES | SCHEMA | ROLE ...
    SET TRANSACTION mode, ...                 SET SESSION CHARACTERISTICS AS TRANSACTION ...
    SET TRANSACTION SNAPSHOT id
    RESET name | ALL    SHOW name | ALL       DISCARD ALL | PLANS | SEQUENCES | TEMP
    PREPARE n [(type, ...)] AS statement      EXECUTE n [(value, ...)]
    DEALLOCATE n | ALL                        UNLISTEN ...
    DECLARE n [...] CURSOR [...] FOR query    FETCH | MOVE [...] n     CLOSE n | ALL

Source: PostgreSQL manual, part VI; src/backend/parser/gram.y (VariableSetStmt,
TransactionStmt).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes.encode.interval import interval_of
from wal2lake.pgtypes.registry.pg_type import (
    INTERVAL_FULL_PRECISION,
    INTERVAL_MASKS,
)
from wal2lake.pgtypes.timezone import fixed_zone
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind


class TransactionVerb(Enum):
    """The commands of transaction control; the values are command tags or names."""

    BEGIN = "BEGIN"
    """Starts a transaction block."""
    START = "START TRANSACTION"
    """Starts a transaction block, too."""
    COMMIT = "COMMIT"
    """COMMIT or END."""
    ROLLBACK = "ROLLBACK"
    """ROLLBACK or ABORT of the transaction."""
    SAVEPOINT = "SAVEPOINT"
    """Sets a savepoint."""
    RELEASE = "RELEASE"
    """Releases a savepoint, and those after it."""
    ROLLBACK_TO = "ROLLBACK TO"
    """Rolls back to a savepoint."""
    PREPARE = "PREPARE TRANSACTION"
    """The first phase of a two-phase commit."""
    COMMIT_PREPARED = "COMMIT PREPARED"
    """The second phase of a two-phase commit."""
    ROLLBACK_PREPARED = "ROLLBACK PREPARED"
    """Ends a prepared transaction without a commit."""


@dataclass(frozen=True, slots=True)
class TransactionControl:
    """A command of transaction control.

    ``modes`` are pairs of a parameter, without the prefix "transaction_", and its value.
    """

    verb: TransactionVerb
    modes: tuple[tuple[str, str], ...] = ()
    chain: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class SetParameter:
    """SET or SET LOCAL; ``values`` is None for TO DEFAULT."""

    name: str
    values: tuple[str, ...] | None
    local: bool = False


@dataclass(frozen=True, slots=True)
class SetTransaction:
    """SET TRANSACTION; with ``session``, SET SESSION CHARACTERISTICS."""

    modes: tuple[tuple[str, str], ...]
    session: bool = False


@dataclass(frozen=True, slots=True)
class SetSnapshot:
    """SET TRANSACTION SNAPSHOT; with ``local``, SET LOCAL, which PostgreSQL parses and refuses."""

    name: str
    local: bool = False


@dataclass(frozen=True, slots=True)
class ShowParameter:
    """SHOW; ``name`` is None for ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Reset:
    """RESET; ``name`` is None for ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Discard:
    """DISCARD; ``what`` is ALL, PLANS, SEQUENCES or TEMP."""

    what: str


@dataclass(frozen=True, slots=True)
class PrepareStatement:
    """PREPARE. ``query`` begins at the character ``offset`` of the statement, each type at its
    own."""

    name: str
    types: tuple[tuple[str, int], ...]
    query: str
    offset: int


@dataclass(frozen=True, slots=True)
class ExecuteStatement:
    """EXECUTE. A value is an expression's text, with its offset."""

    name: str
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Deallocate:
    """DEALLOCATE; ``name`` is None for ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class DeclareCursor:
    """DECLARE. ``query`` begins at the character ``offset`` of the statement."""

    name: str
    query: str
    offset: int
    scroll: bool = False
    hold: bool = False


class FetchDirection(Enum):
    """The directions of FETCH and MOVE. FIRST, LAST, NEXT and PRIOR are special cases of them."""

    FORWARD = "FORWARD"
    """Rows behind the position."""
    BACKWARD = "BACKWARD"
    """Rows before the position, the last one first."""
    ABSOLUTE = "ABSOLUTE"
    """One row by its number, from the end if it is negative."""
    RELATIVE = "RELATIVE"
    """One row by its distance from the position."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """FETCH; with ``move``, MOVE. A ``count`` of None means ALL."""

    name: str
    direction: FetchDirection
    count: int | None
    move: bool = False


@dataclass(frozen=True, slots=True)
class CloseCursor:
    """CLOSE; ``name`` is None for ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """A command without effect in a session, which answers with the tag only."""

    tag: str


Command = (
    TransactionControl
    | SetParameter
    | SetTransaction
    | SetSnapshot
    | ShowParameter
    | Reset
    | Discard
    | PrepareStatement
    | ExecuteStatement
    | Deallocate
    | DeclareCursor
    | Fetch
    | CloseCursor
    | Acknowledge
)


class _NotOurs(Exception):
    """Raised for SET CONSTRAINTS, which the Backend executes."""


_FIRST_WORDS: Final = re.compile(
    r"(begin|start|commit|end|rollback|abort|savepoint|release|prepare|execute|set|reset|show"
    r"|discard|deallocate|declare|fetch|move|close|unlisten)\b",
    re.IGNORECASE,
)


def parse_command(sql: str) -> Command | None:
    """Parse a statement; None if it is not the session's. Raises SqlSyntaxError."""
    match = _FIRST_WORDS.match(sql)
    # A large INSERT must not be split into tokens only to find that it is no SET.
    if match is None:
        return None
    cursor = TokenCursor(sql)
    parser = _PARSERS[_word(cursor)]
    try:
        command = parser(cursor)
    except _NotOurs:
        return None
    cursor.expect_end()
    return command


def is_unknown(expression: str) -> bool:
    """Whether an expression is a string constant or NULL, whose type its place decides."""
    cursor = TokenCursor(expression)
    token = cursor.next()
    is_one = cursor.token.kind is TokenKind.END
    return is_one and (token.kind is TokenKind.STRING or token.is_word("null"))


def _word(cursor: TokenCursor) -> str:
    """The next token, which must be an unquoted word."""
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.unexpected()
    return cursor.next().value


def _parameter_name(cursor: TokenCursor) -> str:
    """var_name: a parameter's name, with or without prefixes."""
    parts = [cursor.name()]
    while cursor.take_mark("."):
        parts.append(cursor.name())
    return ".".join(parts)


def _at_end(cursor: TokenCursor) -> bool:
    return cursor.token.kind is TokenKind.END


# -- transactions


def _modes(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    """transaction_mode [, ...]; the comma is optional, as in PostgreSQL."""
    modes: list[tuple[str, str]] = []
    while not _at_end(cursor):
        if modes:
            cursor.take_mark(",")
        if cursor.take("isolation", "level"):
            modes.append(("isolation", _isolation(cursor)))
        elif cursor.take("read", "only"):
            modes.append(("read_only", "on"))
        elif cursor.take("read", "write"):
            modes.append(("read_only", "off"))
        elif cursor.take("not", "deferrable"):
            modes.append(("deferrable", "off"))
        elif cursor.take("deferrable"):
            modes.append(("deferrable", "on"))
        else:
            raise cursor.unexpected()
    return tuple(modes)


def _isolation(cursor: TokenCursor) -> str:
    for level in (
        ("serializable",),
        ("repeatable", "read"),
        ("read", "committed"),
        ("read", "uncommitted"),
    ):
        if cursor.take(*level):
            return " ".join(level)
    raise cursor.unexpected()


def _skip_noise(cursor: TokenCursor) -> None:
    _ = cursor.take("work") or cursor.take("transaction")


def _chain(cursor: TokenCursor) -> bool:
    if cursor.take("and", "no", "chain"):
        return False
    return cursor.take("and", "chain")


def _begin(cursor: TokenCursor) -> Command:
    _skip_noise(cursor)
    return TransactionControl(TransactionVerb.BEGIN, _modes(cursor))


def _start(cursor: TokenCursor) -> Command:
    cursor.expect("transaction")
    return TransactionControl(TransactionVerb.START, _modes(cursor))


def _commit(cursor: TokenCursor) -> Command:
    if cursor.take("prepared"):
        return TransactionControl(TransactionVerb.COMMIT_PREPARED, name=cursor.string())
    _skip_noise(cursor)
    return TransactionControl(TransactionVerb.COMMIT, chain=_chain(cursor))


def _rollback(cursor: TokenCursor) -> Command:
    if cursor.take("prepared"):
        verb = TransactionVerb.ROLLBACK_PREPARED
        return TransactionControl(verb, name=cursor.string())
    _skip_noise(cursor)
    if cursor.take("to"):
        cursor.take("savepoint")
        return TransactionControl(TransactionVerb.ROLLBACK_TO, name=cursor.name())
    return TransactionControl(TransactionVerb.ROLLBACK, chain=_chain(cursor))


def _savepoint(cursor: TokenCursor) -> Command:
    return TransactionControl(TransactionVerb.SAVEPOINT, name=cursor.name())


def _release(cursor: TokenCursor) -> Command:
    cursor.take("savepoint")
    return TransactionControl(TransactionVerb.RELEASE, name=cursor.name())


def _prepare(cursor: TokenCursor) -> Command:
    if cursor.take("transaction"):
        return TransactionControl(TransactionVerb.PREPARE, name=cursor.string())
    name = cursor.name()
    types = _listed(cursor) if cursor.token.is_mark("(") else ()
    cursor.expect("as")
    if not (cursor.token.is_word(*_PREPARABLE) or cursor.token.is_mark("(")):
        raise cursor.unexpected()
    offset = cursor.token.start
    while not _at_end(cursor):
        cursor.next()
    return PrepareStatement(
        name, types, cursor.text[offset : cursor.previous_end()], offset
    )


_QUERY_WORDS: Final = ("select", "with", "values", "table")
_PREPARABLE: Final = (*_QUERY_WORDS, "insert", "update", "delete", "merge")


def _execute(cursor: TokenCursor) -> Command:
    name = cursor.name()
    return ExecuteStatement(name, () if _at_end(cursor) else _listed(cursor))


def _listed(cursor: TokenCursor) -> tuple[tuple[str, int], ...]:
    """A list in parentheses: the text of each item, and its offset."""
    cursor.expect_mark("(")
    items = []
    start, depth = cursor.token.start, 0
    while True:
        token = cursor.token
        if depth == 0 and (token.is_mark(",") or token.is_mark(")")):
            if token.start == start or not cursor.text[start : token.start].strip():
                raise cursor.unexpected()
            items.append((cursor.text[start : cursor.previous_end()], start))
            cursor.next()
            if token.is_mark(")"):
                return tuple(items)
            start = cursor.token.start
            continue
        if _at_end(cursor):
            raise cursor.unexpected()
        depth += token.is_mark("(") + token.is_mark("[")
        depth -= token.is_mark(")") + token.is_mark("]")
        cursor.next()


# -- parameters


def _set(cursor: TokenCursor) -> Command:
    if cursor.take("constraints"):
        raise _NotOurs
    if cursor.take("session", "characteristics", "as", "transaction"):
        return SetTransaction(_required_modes(cursor), session=True)
    local = cursor.take("local")
    # "session" is also the first word of SESSION AUTHORIZATION.
    if not local and not cursor.at_words("session", "authorization"):
        cursor.take("session")
    if cursor.take("transaction"):
        if cursor.take("snapshot"):
            return SetSnapshot(cursor.string(), local)
        return SetTransaction(_required_modes(cursor))
    if cursor.take("time", "zone"):
        return _time_zone(cursor, local=local)
    if cursor.take("session", "authorization"):
        return _set_special(cursor, "session_authorization", local=local)
    if not _names_parameter(cursor):
        for word, name in (
            ("names", "client_encoding"),
            ("schema", "search_path"),
            ("role", "role"),
        ):
            if cursor.take(word):
                return _set_special(cursor, name, local=local)
        if cursor.take("xml", "option"):
            return SetParameter("xmloption", (_word(cursor),), local)
    name = _parameter_name(cursor)
    if cursor.take("from", "current"):
        return Acknowledge("SET")
    if not cursor.take("to") and not cursor.take_mark("="):
        raise cursor.unexpected()
    if cursor.take("default"):
        return SetParameter(name, None, local)
    values = [_value(cursor)]
    while cursor.take_mark(","):
        values.append(_value(cursor))
    return SetParameter(name, tuple(values), local)


def _required_modes(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    modes = _modes(cursor)
    if not modes:
        raise cursor.unexpected()
    return modes


def _names_parameter(cursor: TokenCursor) -> bool:
    """Whether the next word is a parameter's name, as in ``SET role = x``."""
    after = cursor.ahead(1)
    return after.is_word("to") or after.is_mark("=") or after.is_mark(".")


def _set_special(cursor: TokenCursor, name: str, *, local: bool) -> Command:
    if _at_end(cursor) and name == "client_encoding":
        return SetParameter(name, None, local)
    if cursor.take("default") or (name == "role" and cursor.take("none")):
        return SetParameter(name, None, local)
    return SetParameter(name, (_value(cursor),), local)


def _time_zone(cursor: TokenCursor, *, local: bool) -> Command:
    if cursor.take("local") or cursor.take("default"):
        return SetParameter("TimeZone", None, local)
    if cursor.take("interval"):
        return SetParameter("TimeZone", (_interval_zone(cursor),), local)
    return SetParameter("TimeZone", (_value(cursor),), local)


def _interval_zone(cursor: TokenCursor) -> str:
    """Read an interval, and return the zone that is ahead of Greenwich by it."""
    text, fields = cursor.string(), ""
    if cursor.take("hour"):
        fields = "hour"
        if cursor.take("to"):
            cursor.expect("minute")
            fields = "hour to minute"
    typmod = INTERVAL_MASKS[fields] << 16 | INTERVAL_FULL_PRECISION if fields else -1
    interval = interval_of(text, typmod)
    for number, unit in ((interval.months, "months"), (interval.days, "days")):
        if number:
            raise UsageError(
                f'invalid value for parameter "TimeZone": "INTERVAL \'{text}\'"',
                detail=f"Cannot specify {unit} in time zone interval.",
            )
    return fixed_zone(int(interval.microseconds / 1_000_000))[0]


_NUMBERS: Final = (TokenKind.INTEGER, TokenKind.FLOAT)
_VALUES: Final = (*_NUMBERS, TokenKind.STRING, TokenKind.WORD, TokenKind.QUOTED)


def _value(cursor: TokenCursor) -> str:
    """A string, a number with its sign, or a word."""
    sign = ""
    if cursor.take_mark("-"):
        sign = "-"
    else:
        cursor.take_mark("+")
    token = cursor.token
    if token.kind not in (_NUMBERS if sign else _VALUES):
        raise cursor.unexpected()
    cursor.next()
    return sign + token.value


def _show(cursor: TokenCursor) -> Command:
    return ShowParameter(_parameter_or_all(cursor))


def _reset(cursor: TokenCursor) -> Command:
    return Reset(_parameter_or_all(cursor))


def _parameter_or_all(cursor: TokenCursor) -> str | None:
    if cursor.take("all"):
        return None
    if cursor.take("time", "zone"):
        return "TimeZone"
    if cursor.take("transaction", "isolation", "level"):
        return "transaction_isolation"
    if cursor.take("session", "authorization"):
        return "session_authorization"
    return _parameter_name(cursor)


# -- the rest


def _discard(cursor: TokenCursor) -> Command:
    token = cursor.token
    what = _word(cursor)
    if what == "temporary":
        what = "temp"
    if what not in ("all", "plans", "sequences", "temp"):
        raise cursor.unexpected(token)
    return Discard(what.upper())


def _deallocate(cursor: TokenCursor) -> Command:
    cursor.take("prepare")
    return Deallocate(None if cursor.take("all") else cursor.name())


# -- cursors


def _declare(cursor: TokenCursor) -> Command:
    name = cursor.name()
    options = _cursor_options(cursor)
    cursor.expect("cursor")
    hold = cursor.take("with", "hold")
    if not hold:
        cursor.take("without", "hold")
    cursor.expect("for")
    if not (cursor.token.is_word(*_QUERY_WORDS) or cursor.token.is_mark("(")):
        raise cursor.unexpected()
    _check_cursor_options(name, options)
    offset = cursor.token.start
    while not _at_end(cursor):
        cursor.next()
    query = cursor.text[offset : cursor.previous_end()]
    return DeclareCursor(name, query, offset, "SCROLL" in options, hold)


def _cursor_options(cursor: TokenCursor) -> set[str]:
    options = set()
    while True:
        if cursor.take("no", "scroll"):
            options.add("NO SCROLL")
            continue
        for word in ("scroll", "binary", "insensitive", "asensitive"):
            if cursor.take(word):
                options.add(word.upper())
                break
        else:
            return options


def _check_cursor_options(name: str, options: set[str]) -> None:
    for option, opposite in (("SCROLL", "NO SCROLL"), ("ASENSITIVE", "INSENSITIVE")):
        if option in options and opposite in options:
            raise UsageError(
                f"cannot specify both {option} and {opposite}", sqlstate="42P11"
            )
    if not name:
        raise UsageError("invalid cursor name: must not be empty", sqlstate="34000")
    if "BINARY" in options:
        raise FeatureNotSupportedError("binary cursors are not supported")


_ONE_ROW: Final = {
    "next": (FetchDirection.FORWARD, 1),
    "prior": (FetchDirection.BACKWARD, 1),
    "first": (FetchDirection.ABSOLUTE, 1),
    "last": (FetchDirection.ABSOLUTE, -1),
}


def _fetch(cursor: TokenCursor) -> Command:
    return Fetch(*_fetched(cursor))


def _move(cursor: TokenCursor) -> Command:
    return Fetch(*_fetched(cursor), move=True)


def _fetched(cursor: TokenCursor) -> tuple[str, FetchDirection, int | None]:
    """fetch_args: a direction, and the name of the cursor."""
    direction, count = _direction(cursor)
    _ = cursor.take("from") or cursor.take("in")
    return cursor.name(), direction, count


def _direction(cursor: TokenCursor) -> tuple[FetchDirection, int | None]:
    # A word that ends the statement is the name of the cursor.
    if cursor.ahead(1).kind is TokenKind.END and not _is_signed(cursor):
        return FetchDirection.FORWARD, 1
    for word, movement in _ONE_ROW.items():
        if cursor.take(word):
            return movement
    if cursor.take("all"):
        return FetchDirection.FORWARD, None
    for direction in (FetchDirection.ABSOLUTE, FetchDirection.RELATIVE):
        if cursor.take(direction.value.lower()):
            return direction, _signed(cursor)
    for direction in (FetchDirection.FORWARD, FetchDirection.BACKWARD):
        if cursor.take(direction.value.lower()):
            if cursor.take("all"):
                return direction, None
            return direction, _signed(cursor) if _is_signed(cursor) else 1
    count = _signed(cursor) if _is_signed(cursor) else 1
    return FetchDirection.FORWARD, count


def _is_signed(cursor: TokenCursor) -> bool:
    token = cursor.token
    return token.kind is TokenKind.INTEGER or token.is_mark("-") or token.is_mark("+")


def _signed(cursor: TokenCursor) -> int:
    """SignedIconst."""
    sign = -1 if cursor.take_mark("-") else 1
    if sign == 1:
        cursor.take_mark("+")
    if cursor.token.kind is not TokenKind.INTEGER:
        raise cursor.unexpected()
    return sign * int(cursor.next().value)


def _close(cursor: TokenCursor) -> Command:
    return CloseCursor(None if cursor.take("all") else cursor.name())


def _unlisten(cursor: TokenCursor) -> Command:
    if not cursor.take_mark("*"):
        cursor.name()
    return Acknowledge("UNLISTEN")


_PARSERS: Final[dict[str, Callable[[TokenCursor], Command]]] = {
    "begin": _begin,
    "start": _start,
    "commit": _commit,
    "end": _commit,
    "rollback": _rollback,
    "abort": _rollback,
    "savepoint": _savepoint,
    "release": _release,
    "prepare": _prepare,
    "execute": _execute,
    "set": _set,
    "reset": _reset,
    "show": _show,
    "discard": _discard,
    "deallocate": _deallocate,
    "declare": _declare,
    "fetch": _fetch,
    "move": _move,
    "close": _close,
    "unlisten": _unlisten,
}
