"""``check_depth``: refuses a text whose tree would be too deep for the library's stack.

Comes in: the text of a query string. Goes out: nothing, or 54001. Called before the library, which
has no check of its own stack: without this bound, ``1 + 1 + ...`` ends the process.

A tree is at most as deep as this count says. Each level of a tree has a token of its own, so a
count of tokens bounds it, but for tokens that follow each other in a list:

    segment    The tokens between two separators of a list. A bracket in it, or CASE ... END, counts
               as many as are in its deepest segment.
    separator  A comma, a semicolon, AND, OR, WHEN, THEN and ELSE: the grammar makes flat lists of
               what they separate. UNION, INTERSECT and EXCEPT separate, too.
    chain      UNION, INTERSECT, EXCEPT, JOIN, BETWEEN (whose AND may be followed by NOT and another
               BETWEEN) and BEGIN ATOMIC nest across separators, so they are counted apart.

The separators are reserved words. They are names only behind a dot or as a column's label, and an
expression does not go on behind a label. Strings and comments are cut as the scanner cuts them. In
a text that the scanner or the grammar refuses, the count may be wrong: there is no tree then.

Source: gram.y; scan.l.
"""

from __future__ import annotations

import re
from typing import Final

from wal2lake.errors import SqlSyntaxError, UsageError
from wal2lake.sql.grammar.lexer import end_of_comment

LEVELS: Final = 4_000
"""Limit of a tree's depth. A level takes 640 bytes of stack at most, so 2.6 MB; PostgreSQL's own
limit of 2 MB ends at some 5,000 terms of a sum."""

_LETTER: Final = r"A-Za-z_\x80-\U0010ffff"
_NEXT_PIECE: Final = (
    r"(?:[ \t\f\v]|--[^\n\r]*+)*+[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*+)*+'"
)
_ITEM: Final = (
    r"[ \t\n\r]*+(?:'[^']*+(?:''[^']*+)*+'|-?[0-9.]++|[A-Za-z_]++)[ \t\n\r]*+"
)

_TOKEN: Final = re.compile(
    rf"""
      (?P<row>      \({_ITEM}(?:,{_ITEM})*+\) )
    | [ \t\n\r\f\v]++ | --[^\n\r]*+
    | (?P<comment>  /\* )
    | (?P<constant> [eE]'[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+'
                      (?:{_NEXT_PIECE}[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+')*+
                  | (?:[uU]&|[nNbBxX])?'[^']*+(?:''[^']*+)*+'
                  | (?:[uU]&)?"[^"]*+(?:""[^"]*+)*+" )
    | (?P<dollar>   \$(?:[{_LETTER}][{_LETTER}0-9]*+)?\$ )
    | (?P<word>     [{_LETTER}][{_LETTER}0-9$]*+ )
    | (?P<number>   \.?[0-9][0-9_]*+ | \$[0-9]++ )
    | (?P<comma>    , )
    | (?P<open>     [(\[] )
    | (?P<close>    [)\]] )
    | (?P<end>      ; )
    | (?P<unclosed> ['"] )
    | (?P<other>    . )
    """,
    re.VERBOSE | re.DOTALL,
)

_SEPARATORS: Final = frozenset(("and", "or", "when", "then", "else"))
_UNIONS: Final = frozenset(("union", "intersect", "except"))
_CHAINS: Final = _UNIONS | {"join", "between"}
_WORDS: Final = _SEPARATORS | _CHAINS | {"case", "end", "atomic"}


class _Level:
    """The text between two brackets, between CASE and END, or all of it."""

    __slots__ = ("chain", "deepest", "is_case", "segment")

    def __init__(self, *, is_case: bool = False) -> None:
        self.segment = 0
        self.deepest = 0
        self.chain = 0
        self.is_case = is_case

    def separate(self) -> None:
        self.deepest = max(self.deepest, self.segment)
        self.segment = 0

    def depth(self) -> int:
        return self.chain + max(self.deepest, self.segment)


def check_depth(text: str) -> None:
    """Raise 54001 if the tree of a text may have more than ``LEVELS`` levels."""
    # Each level has a character of its own.
    if len(text) > LEVELS and _Count(text).depth() > LEVELS:
        raise UsageError(
            "stack depth limit exceeded",
            sqlstate="54001",
            hint=f"A statement may be nested {LEVELS} times.",
        )


class _Count:
    """Counts the levels of a text."""

    __slots__ = ("_atomic", "_finished", "_levels", "_text", "_top")

    def __init__(self, text: str) -> None:
        self._text = text
        self._atomic = 0
        self._finished = 0
        self._top = _Level()
        self._levels = [self._top]

    def depth(self) -> int:
        """The most levels that the tree may have."""
        start: int | None = 0
        while start is not None:
            start = self._run(start)
        while len(self._levels) > 1:
            self._close()
        return self._atomic + max(self._finished, self._top.depth())

    def _run(self, start: int) -> int | None:
        """Count tokens up to a comment or a dollar-quoted string; return the end of it."""
        behind_dot = False
        top = self._top
        for match in _TOKEN.finditer(self._text, start):
            shape = match.lastgroup
            if shape == "comma":
                top.separate()
            elif shape == "open":
                top = self._open(_Level())
            elif shape == "close":
                top = self._close_bracket()
            elif shape == "word" and not behind_dot:
                top = self._word(match[0].lower())
            elif shape == "end":
                top = self._end_statement()
            elif shape in ("comment", "dollar"):
                return self._jump(match)
            elif shape == "unclosed":
                return None
            elif shape is not None:
                # A row of constants and names is one token, as most of a long text are rows.
                top.segment += 2 if shape == "row" else 1
            if shape is not None:
                behind_dot = match[0] == "."
        return None

    def _jump(self, match: re.Match[str]) -> int | None:
        """The end of a comment or a dollar-quoted string; None if there is none."""
        if match.lastgroup == "comment":
            try:
                return end_of_comment(self._text, match.start())
            except SqlSyntaxError:
                return None
        self._top.segment += 1
        close = self._text.find(match[0], match.end())
        return None if close < 0 else close + len(match[0])

    def _word(self, word: str) -> _Level:
        top = self._top
        if word not in _WORDS:
            top.segment += 1
        elif word in _SEPARATORS:
            top.separate()
        elif word in _CHAINS:
            top.chain += 1
            if word in _UNIONS:
                top.separate()
        elif word == "case":
            return self._open(_Level(is_case=True))
        elif word == "atomic":
            self._atomic += 1
        elif top.is_case:
            return self._close()
        return top

    def _open(self, level: _Level) -> _Level:
        self._levels.append(level)
        self._top = level
        return level

    def _close(self) -> _Level:
        """Close the innermost level, which counts in the one around it."""
        closed = self._levels.pop()
        self._top = self._levels[-1]
        self._top.segment += 1 + closed.depth()
        return self._top

    def _close_bracket(self) -> _Level:
        while self._top.is_case:
            self._close()
        return self._close() if len(self._levels) > 1 else self._top

    def _end_statement(self) -> _Level:
        while self._top.is_case:
            self._close()
        if len(self._levels) == 1:
            self._finished = max(self._finished, self._top.depth())
            self._levels = [_Level()]
            self._top = self._levels[0]
        else:
            # In the brackets of CREATE RULE.
            self._top.separate()
        return self._top
