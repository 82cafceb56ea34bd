"""Translates SUBSTRING(text FROM pattern), which the embedded engine does not have.

Comes in: the text and the pattern of a typed tree. Goes out: the engine's expression for the first
match, or for the pattern's first group; null without a match. The engine reads the pattern, as it
does for ``~``. For a group that took no part in the match the engine returns an empty text, so a
pattern whose group may take no part is refused.

Source: manual, section 9.7.3.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.sql.sysviews.query.inference import TEXT, UNKNOWN, get_type

_NOT_SYNTAX: Final = re.compile(r"\\.|\[\^?\]?(?:\[:\w+:\]|[^\]])*\]", re.DOTALL)
"""Escaped characters and bracket expressions."""

_GROUP: Final = re.compile(r"\((?!\?)")

_MAY_BE_LEFT_OUT: Final = re.compile(r"\)[?*{]")

_OTHER_MATCH: Final = re.compile(r"\||[*+?}]\?")
"""Alternatives and non-greedy quantifiers. PostgreSQL takes the longest alternative, the engine the
first one. A non-greedy quantifier may change the matches of all others in PostgreSQL."""

_NEWLINE_TOO: Final = "s"
"""The engine's option that makes a dot match a newline."""


def is_pattern(node: exp.Substring) -> bool:
    """Whether the second argument is a text, or a string constant without a type."""
    start = node.args.get("start")
    return node.args.get("length") is None and get_type(start) in (UNKNOWN, TEXT)


def matched(value: exp.Expression, pattern: exp.Expression) -> exp.Expression:
    """Return the expression for the matching part of a text; raises 0A000."""
    if isinstance(pattern, exp.Null):
        return exp.Cast(
            this=exp.Null(), to=exp.DataType.build("VARCHAR", dialect="duckdb")
        )
    if not (isinstance(pattern, exp.Literal) and pattern.is_string):
        raise FeatureNotSupportedError(
            "substring() with a regular expression that is no constant is not supported"
            " on system catalogs"
        )
    syntax = _NOT_SYNTAX.sub("", pattern.name)
    grouped = _GROUP.search(syntax) is not None
    if grouped and _MAY_BE_LEFT_OUT.search(syntax):
        raise FeatureNotSupportedError(
            "substring() with a regular expression whose group may be left out is not"
            " supported on system catalogs"
        )
    if _OTHER_MATCH.search(syntax):
        raise FeatureNotSupportedError(
            "substring() with alternatives or non-greedy quantifiers is not supported on"
            " system catalogs"
        )
    option = exp.Literal.string(_NEWLINE_TOO)
    part = exp.Anonymous(
        this="regexp_extract",
        expressions=[
            value.copy(),
            pattern.copy(),
            exp.Literal.number(1 if grouped else 0),
            option.copy(),
        ],
    )
    matches = exp.Anonymous(this="regexp_matches", expressions=[value, pattern, option])
    return exp.Case(ifs=[exp.If(this=matches, true=part)])
