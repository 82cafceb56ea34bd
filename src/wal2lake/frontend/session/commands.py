"""The statements that a session executes itself: a small grammar.

In: one statement's text. Out: a command, or None: the Backend's business. These are
transaction control, session parameters, and what concerns the session's own prepared
statements and portals:

    BEGIN | START TRANSACTION [mode, ...]     COMMIT | END | ROLLBACK | ABORT [AND [NO] CHAIN]
    SAVEPOINT n | RELEASE n | ROLLBACK TO n   PREPARE TRANSACTION, COMMIT|ROLLBACK PREPARED
    SET [SESSION | LOCAL] name {TO | =} v, ..  SET TIME ZONE | NAMES | SCHEMA | ROLE ...
    SET TRANSACTION mode, ...                 SET SESSION CHARACTERISTICS AS TRANSACTION ...
    RESET name | ALL    SHOW name | ALL       DISCARD ALL | PLANS | SEQUENCES | TEMP
    DEALLOCATE n | ALL  CLOSE ALL             UNLISTEN ...

Source: PostgreSQL manual, part VI; src/backend/parser/gram.y (VariableSetStmt,
TransactionStmt).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import SqlSyntaxError
from wal2lake.frontend.session.scan import Token, TokenKind, tokens


class TransactionVerb(Enum):
    """Transaction control, by command tag."""

    BEGIN = "BEGIN"
    """Start a block."""
    START = "START TRANSACTION"
    """The same, in the standard's words."""
    COMMIT = "COMMIT"
    """End it, keeping its work."""
    ROLLBACK = "ROLLBACK"
    """End it, undoing its work."""
    SAVEPOINT = "SAVEPOINT"
    """Mark a point inside a block."""
    RELEASE = "RELEASE"
    """Forget such a point."""
    ROLLBACK_TO = "ROLLBACK TO"
    """Return to such a point."""
    PREPARE = "PREPARE TRANSACTION"
    """Two-phase commit, first phase."""
    COMMIT_PREPARED = "COMMIT PREPARED"
    """Two-phase commit, second phase."""
    ROLLBACK_PREPARED = "ROLLBACK PREPARED"
    """Two-phase commit, given up."""


@dataclass(frozen=True, slots=True)
class TransactionControl:
    """``modes``: (parameter without "transaction_", value) pairs."""

    verb: TransactionVerb
    modes: tuple[tuple[str, str], ...] = ()
    chain: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class SetParameter:
    """SET, SET LOCAL; ``values`` None: TO DEFAULT."""

    name: str
    values: tuple[str, ...] | None
    local: bool = False


@dataclass(frozen=True, slots=True)
class SetTransaction:
    """SET TRANSACTION, or with ``session`` the defaults of later ones."""

    modes: tuple[tuple[str, str], ...]
    session: bool = False


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW; ``name`` None: ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Reset:
    """RESET; ``name`` None: ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Discard:
    """DISCARD ``what``: ALL, PLANS, SEQUENCES or TEMP."""

    what: str


@dataclass(frozen=True, slots=True)
class Deallocate:
    """DEALLOCATE; ``name`` None: ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Nothing to do, because a session has no such thing: only the tag is sent."""

    tag: str


Command = (
    TransactionControl
    | SetParameter
    | SetTransaction
    | Show
    | Reset
    | Discard
    | Deallocate
    | Acknowledge
)


class _NotOurs(Exception):
    """The statement begins like a command of the session and is none."""


_FIRST_WORDS: Final = re.compile(
    r"(begin|start|commit|end|rollback|abort|savepoint|release|prepare|set|reset|show"
    r"|discard|deallocate|close|unlisten)\b",
    re.IGNORECASE,
)


def parse_command(sql: str) -> Command | None:
    """Read a statement; None: not the session's. Raises SqlSyntaxError."""
    match = _FIRST_WORDS.match(sql)
    # An INSERT of a megabyte must not be cut into tokens to see that it is no SET.
    if match is None:
        return None
    words = _Words(sql)
    parser = _PARSERS[words.word()]
    try:
        command = parser(words)
    except _NotOurs:
        return None
    words.end()
    return command


class _Words:
    """A cursor over the tokens of one statement."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._tokens = list(tokens(sql))
        self.at = 0

    def peek(self) -> Token | None:
        return self._tokens[self.at] if self.at < len(self._tokens) else None

    def next(self) -> Token:
        token = self.peek()
        if token is None:
            raise self.error()
        self.at += 1
        return token

    def word(self) -> str:
        """The next token, which must be an unquoted word."""
        token = self.peek()
        if token is None or token.kind is not TokenKind.WORD:
            raise self.error()
        self.at += 1
        return token.value

    def accept(self, *expected: str) -> bool:
        """Take these words if all of them are next."""
        ahead = self._tokens[self.at : self.at + len(expected)]
        found = tuple(
            token.value if token.kind is TokenKind.WORD else token.text
            for token in ahead
        )
        if found != expected:
            return False
        self.at += len(expected)
        return True

    def expect(self, *expected: str) -> None:
        """Take these words; raises SqlSyntaxError at the first that differs."""
        for word in expected:
            if not self.accept(word):
                raise self.error()

    def name(self) -> str:
        """An identifier."""
        token = self.peek()
        if token is None or token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
            raise self.error()
        self.at += 1
        return token.value

    def dotted_name(self) -> str:
        """A parameter's name, perhaps with prefixes."""
        parts = [self.name()]
        while self.accept("."):
            parts.append(self.name())
        return ".".join(parts)

    def string(self) -> str:
        """A string constant."""
        token = self.peek()
        if token is None or token.kind is not TokenKind.STRING:
            raise self.error()
        self.at += 1
        return token.value

    def end(self) -> None:
        """Nothing may be left."""
        if self.peek() is not None:
            raise self.error()

    @property
    def at_end(self) -> bool:
        return self.peek() is None

    def error(self) -> SqlSyntaxError:
        """A syntax error at the next token."""
        token = self.peek()
        if token is None:
            error = SqlSyntaxError("syntax error at end of input")
            error.position = len(self._sql) + 1
        else:
            error = SqlSyntaxError(f'syntax error at or near "{token.text}"')
            error.position = token.start + 1
        return error


# -- transactions


def _modes(words: _Words) -> tuple[tuple[str, str], ...]:
    """transaction_mode [, ...]; the comma is optional, as in PostgreSQL."""
    modes: list[tuple[str, str]] = []
    while not words.at_end:
        if modes:
            words.accept(",")
        if words.accept("isolation", "level"):
            modes.append(("isolation", _isolation(words)))
        elif words.accept("read", "only"):
            modes.append(("read_only", "on"))
        elif words.accept("read", "write"):
            modes.append(("read_only", "off"))
        elif words.accept("not", "deferrable"):
            modes.append(("deferrable", "off"))
        elif words.accept("deferrable"):
            modes.append(("deferrable", "on"))
        else:
            raise words.error()
    return tuple(modes)


def _isolation(words: _Words) -> str:
    for level in (
        ("serializable",),
        ("repeatable", "read"),
        ("read", "committed"),
        ("read", "uncommitted"),
    ):
        if words.accept(*level):
            return " ".join(level)
    raise words.error()


def _skip_noise(words: _Words) -> None:
    _ = words.accept("work") or words.accept("transaction")


def _chain(words: _Words) -> bool:
    if words.accept("and", "no", "chain"):
        return False
    return words.accept("and", "chain")


def _begin(words: _Words) -> Command:
    _skip_noise(words)
    return TransactionControl(TransactionVerb.BEGIN, _modes(words))


def _start(words: _Words) -> Command:
    words.expect("transaction")
    return TransactionControl(TransactionVerb.START, _modes(words))


def _commit(words: _Words) -> Command:
    if words.accept("prepared"):
        return TransactionControl(TransactionVerb.COMMIT_PREPARED, name=words.string())
    _skip_noise(words)
    return TransactionControl(TransactionVerb.COMMIT, chain=_chain(words))


def _rollback(words: _Words) -> Command:
    if words.accept("prepared"):
        verb = TransactionVerb.ROLLBACK_PREPARED
        return TransactionControl(verb, name=words.string())
    _skip_noise(words)
    if words.accept("to"):
        words.accept("savepoint")
        return TransactionControl(TransactionVerb.ROLLBACK_TO, name=words.name())
    return TransactionControl(TransactionVerb.ROLLBACK, chain=_chain(words))


def _savepoint(words: _Words) -> Command:
    return TransactionControl(TransactionVerb.SAVEPOINT, name=words.name())


def _release(words: _Words) -> Command:
    words.accept("savepoint")
    return TransactionControl(TransactionVerb.RELEASE, name=words.name())


def _prepare(words: _Words) -> Command:
    if not words.accept("transaction"):
        raise _NotOurs
    return TransactionControl(TransactionVerb.PREPARE, name=words.string())


# -- parameters


def _set(words: _Words) -> Command:
    if words.accept("constraints"):
        raise _NotOurs
    if words.accept("session", "characteristics", "as", "transaction"):
        return SetTransaction(_required_modes(words), session=True)
    local = words.accept("local")
    # "session" may also be the first word of SESSION AUTHORIZATION.
    if not local and not _next_are(words, "session", "authorization"):
        words.accept("session")
    if words.accept("transaction"):
        if words.accept("snapshot"):
            raise _NotOurs
        return SetTransaction(_required_modes(words))
    if words.accept("time", "zone"):
        return _time_zone(words, local=local)
    if words.accept("session", "authorization"):
        return _set_special(words, "session_authorization", local=local)
    if not _names_parameter(words):
        for word, name in (
            ("names", "client_encoding"),
            ("schema", "search_path"),
            ("role", "role"),
        ):
            if words.accept(word):
                return _set_special(words, name, local=local)
        if words.accept("xml", "option"):
            return SetParameter("xmloption", (words.word(),), local)
    name = words.dotted_name()
    if words.accept("from", "current"):
        return Acknowledge("SET")
    if not words.accept("to") and not words.accept("="):
        raise words.error()
    if words.accept("default"):
        return SetParameter(name, None, local)
    values = [_value(words)]
    while words.accept(","):
        values.append(_value(words))
    return SetParameter(name, tuple(values), local)


def _required_modes(words: _Words) -> tuple[tuple[str, str], ...]:
    modes = _modes(words)
    if not modes:
        raise words.error()
    return modes


def _next_are(words: _Words, *expected: str) -> bool:
    before = words.at
    found = words.accept(*expected)
    words.at = before
    return found


def _names_parameter(words: _Words) -> bool:
    """Whether the next word is followed by TO or = (``SET role = x``)."""
    before = words.at
    words.next()
    found = words.accept("to") or words.accept("=") or words.accept(".")
    words.at = before
    return found


def _set_special(words: _Words, name: str, *, local: bool) -> Command:
    if words.at_end and name == "client_encoding":
        return SetParameter(name, None, local)
    if words.accept("default") or (name == "role" and words.accept("none")):
        return SetParameter(name, None, local)
    return SetParameter(name, (_value(words),), local)


def _time_zone(words: _Words, *, local: bool) -> Command:
    if words.accept("local") or words.accept("default"):
        return SetParameter("TimeZone", None, local)
    if words.accept("interval"):
        value = words.string()
        if words.accept("hour"):
            words.expect("to", "minute")
        return SetParameter("TimeZone", (value,), local)
    return SetParameter("TimeZone", (_value(words),), local)


def _value(words: _Words) -> str:
    """A string, a number with its sign, or a word."""
    sign = ""
    if words.accept("-"):
        sign = "-"
    elif words.accept("+"):
        sign = ""
    token = words.peek()
    if token is None or (sign and token.kind is not TokenKind.NUMBER):
        raise words.error()
    if token.kind in (TokenKind.SEMICOLON, TokenKind.OTHER):
        raise words.error()
    words.next()
    return sign + token.value


def _show(words: _Words) -> Command:
    return Show(_parameter_or_all(words))


def _reset(words: _Words) -> Command:
    return Reset(_parameter_or_all(words))


def _parameter_or_all(words: _Words) -> str | None:
    if words.accept("all"):
        return None
    if words.accept("time", "zone"):
        return "TimeZone"
    if words.accept("transaction", "isolation", "level"):
        return "transaction_isolation"
    if words.accept("session", "authorization"):
        return "session_authorization"
    return words.dotted_name()


# -- the rest


def _discard(words: _Words) -> Command:
    what = words.word()
    if what == "temporary":
        what = "temp"
    if what not in ("all", "plans", "sequences", "temp"):
        words.at -= 1
        raise words.error()
    return Discard(what.upper())


def _deallocate(words: _Words) -> Command:
    words.accept("prepare")
    return Deallocate(None if words.accept("all") else words.name())


def _close(words: _Words) -> Command:
    if not words.accept("all"):
        raise _NotOurs
    return Acknowledge("CLOSE CURSOR ALL")


def _unlisten(words: _Words) -> Command:
    if not words.accept("*"):
        words.name()
    return Acknowledge("UNLISTEN")


_PARSERS: Final[dict[str, Callable[[_Words], Command]]] = {
    "begin": _begin,
    "start": _start,
    "commit": _commit,
    "end": _commit,
    "rollback": _rollback,
    "abort": _rollback,
    "savepoint": _savepoint,
    "release": _release,
    "prepare": _prepare,
    "set": _set,
    "reset": _reset,
    "show": _show,
    "discard": _discard,
    "deallocate": _deallocate,
    "close": _close,
    "unlisten": _unlisten,
}
