"""``failure``: the error that PostgreSQL reports for a text that does not parse.

Comes in: what the library says. Goes out: the same words with the SQLSTATE, the detail and the
hint, which the library does not return.

Sources: gram.y, scan.l, parser.c, mbutils.c.
"""

from __future__ import annotations

import re
from typing import Final

from wal2lake.errors import SqlSyntaxError, UsageError, Wal2LakeError
from wal2lake.sql.grammar.pgparse.library import Refusal

_SQLSTATES: Final = tuple(
    (re.compile(pattern, re.DOTALL), sqlstate)
    for pattern, sqlstate in (
        (r"invalid byte sequence for encoding ", "22021"),
        (r"out of memory$", "53200"),
        (r"unsafe use of \\' in a string literal", "22P06"),
        (r"frame (?:start|end) cannot be UNBOUNDED ", "42P20"),
        (r"frame starting from (?:current|following) row cannot ", "42P20"),
        (r"(?:modulus|remainder) for hash partition provided more ", "42710"),
        (r"column number must be in range from 1 to ", "22023"),
        (r"precision for type float must be ", "22023"),
        (r'unrecognized partitioning strategy "', "22023"),
        (r"unrecognized JSON encoding: ", "22023"),
        (r'role name ".*" is reserved$', "42939"),
        (r"\w+ cannot be used as a role name here$", "42939"),
        (r"(?:UNENCRYPTED PASSWORD|CREATE EXTENSION .*) is no longer supp", "0A000"),
        (r"CREATE SCHEMA IF NOT EXISTS cannot include schema elements", "0A000"),
        (r"CREATE OR REPLACE CONSTRAINT TRIGGER is not supported", "0A000"),
        (r"current database cannot be changed", "0A000"),
        (
            r"(?:MATCH PARTIAL|CREATE ASSERTION|UNIQUE predicate) (?:is )?not yet",
            "0A000",
        ),
        (r"a column list with .* is only supported for ON DELETE actions", "0A000"),
        (r"aggregates cannot have output arguments", "0A000"),
        (r"WITH CHECK OPTION not supported on recursive views", "0A000"),
        (r"an ordered-set aggregate with a VARIADIC direct argument must ", "0A000"),
        (r".* constraints cannot be marked (?:DEFERR|NOT VALID|NO INHERIT)", "0A000"),
    )
)
"""The errors that are not 42601, by the beginning of their words."""

_HINTS: Final = (
    ("LIMIT #,# syntax is not supported", "Use separate LIMIT and OFFSET clauses."),
    (
        "UNENCRYPTED PASSWORD is no longer supported",
        "Remove UNENCRYPTED to store the password in encrypted form instead.",
    ),
    (
        "missing argument",
        "Use NONE to denote the missing argument of a unary operator.",
    ),
    (
        "unrecognized row security option ",
        "Only PERMISSIVE or RESTRICTIVE policies are supported currently.",
    ),
)
"""The hints, by the beginning of an error's words."""

_DETAILS: Final = {
    "invalid publication object list": (
        "One of TABLE or TABLES IN SCHEMA must be specified before a standalone table or"
        " schema name."
    ),
}


def failure(refusal: Refusal) -> Wal2LakeError:
    """The error for a text that the scanner or the grammar refuses."""
    message = refusal.message
    sqlstate = "42601"
    hint = next((hint for words, hint in _HINTS if message.startswith(words)), None)
    if message == "invalid Unicode escape":
        # U& constants, whose function this is, have another SQLSTATE than E'' constants.
        is_unicode = refusal.function == "str_udeescape"
        sqlstate = "42601" if is_unicode else "22025"
        hint = f"Unicode escapes must be {_ESCAPES[is_unicode]}."
    for pattern, other in _SQLSTATES:
        if pattern.match(message):
            sqlstate = other
    kind = SqlSyntaxError if sqlstate == "42601" else UsageError
    detail = _DETAILS.get(message)
    error = kind(message, sqlstate=sqlstate, detail=detail, hint=hint)
    error.position = refusal.position
    return error


_ESCAPES: Final = ("\\uXXXX or \\UXXXXXXXX", "\\XXXX or \\+XXXXXX")
"""By whether the constant is one of U&."""
