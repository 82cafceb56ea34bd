"""A cursor over the tokens of one statement, with PostgreSQL's syntax errors.

Comes in: a statement's text. Goes out: names, strings, lists; or a SqlSyntaxError that
says near what, and where. The room's parsers share one such cursor; each rule of gram.y
that they use is one method here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError
from wal2lake.frontend.grammar.lexer import Token, TokenKind, syntax_error, tokens
from wal2lake.frontend.grammar.statements import QualifiedName, RoleName
from wal2lake.model import DATABASE
from wal2lake.pgtypes.keywords import NOT_COLUMN_NAMES

_T = TypeVar("_T")

_ROLE_KEYWORDS: Final = ("current_role", "current_user", "session_user")


class Cursor:
    """Where the parser is in a statement."""

    __slots__ = ("_at", "_tokens", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = list(tokens(text))
        # A last semicolon belongs to no statement, but callers may leave it.
        while len(self._tokens) > 1 and self._tokens[-2].is_mark(";"):
            del self._tokens[-2]
        self._at = 0

    @property
    def token(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._at]

    def ahead(self, distance: int) -> Token:
        """A later token; END when there is none."""
        return self._tokens[min(self._at + distance, len(self._tokens) - 1)]

    def next(self) -> Token:
        """Take the next token; END stays."""
        token = self._tokens[self._at]
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def previous_end(self) -> int:
        """The place after the last taken token."""
        return self._tokens[self._at - 1].end if self._at else 0

    def unexpected(self, token: Token | None = None) -> SqlSyntaxError:
        """``syntax error at or near ...`` for the next token."""
        token = token or self.token
        start = token.start
        if token.kind is TokenKind.END:
            # PostgreSQL points behind the last character, white space included.
            start = len(self.text)
        return syntax_error("syntax error", start, token.text)

    # ---- words and marks --------------------------------------------------------------

    def at_words(self, *words: str) -> bool:
        """Whether these unquoted words come next."""
        return all(self.ahead(i).is_word(word) for i, word in enumerate(words))

    def take(self, *words: str) -> bool:
        """Take these words if they all come next."""
        if not self.at_words(*words):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Take these words or fail at the first that is missing."""
        for word in words:
            if not self.token.is_word(word):
                raise self.unexpected()
            self.next()

    def take_mark(self, mark: str) -> bool:
        """Take a punctuation mark if it comes next."""
        if not self.token.is_mark(mark):
            return False
        self.next()
        return True

    def expect_mark(self, mark: str) -> None:
        """Take a punctuation mark or fail."""
        if not self.take_mark(mark):
            raise self.unexpected()

    def expect_end(self) -> None:
        """Nothing may follow."""
        if self.token.kind is not TokenKind.END:
            raise self.unexpected()

    # ---- rules ------------------------------------------------------------------------

    def name(self) -> str:
        """ColId: what may name a table, a column, a subscription."""
        token = self.token
        if token.kind is TokenKind.QUOTED or (
            token.kind is TokenKind.WORD and token.value not in NOT_COLUMN_NAMES
        ):
            return self.next().value
        raise self.unexpected()

    def label(self) -> str:
        """ColLabel: any word at all."""
        if self.token.kind in (TokenKind.WORD, TokenKind.QUOTED):
            return self.next().value
        raise self.unexpected()

    def string(self) -> str:
        """Sconst."""
        if self.token.kind is TokenKind.STRING:
            return self.next().value
        raise self.unexpected()

    def commas(self, rule: Callable[[], _T]) -> tuple[_T, ...]:
        """One or more, separated by commas."""
        found = [rule()]
        while self.take_mark(","):
            found.append(rule())
        return tuple(found)

    def qualified_name(self) -> QualifiedName:
        """``name``, ``schema.name``, or with the own database before it; the parts after the first
        may be any word."""
        start = self.token.start
        parts = [self.name()]
        while self.take_mark("."):
            parts.append(self.label())
        if len(parts) == 3 and parts[0] == DATABASE:
            del parts[0]
        if len(parts) > 2:
            error = FeatureNotSupportedError(
                f'cross-database references are not implemented: "{".".join(parts)}"'
            )
            if len(parts) > 3:
                raise syntax_error(
                    "improper qualified name (too many dotted names): "
                    + ".".join(parts),
                    start,
                )
            raise error
        schema = parts[0] if len(parts) == 2 else None
        return QualifiedName(schema, parts[-1], start + 1)

    def role(self) -> RoleName:
        """RoleSpec."""
        if self.token.is_word(*_ROLE_KEYWORDS):
            return RoleName(self.next().value, keyword=True)
        token = self.token
        name = self.name()
        if name == "none":
            # Quoted as well.
            raise syntax_error(
                'role name "none" is reserved', token.start, sqlstate="42939"
            )
        return RoleName(name)

    def if_exists(self) -> bool:
        """[IF EXISTS]. ``if`` is a name as well, so both words must be there."""
        return self.take("if", "exists")

    def cascade(self) -> bool:
        """[CASCADE | RESTRICT]."""
        if self.take("cascade"):
            return True
        self.take("restrict")
        return False

    def skip_parentheses(self) -> None:
        """Pass over a balanced ``( ... )`` that comes next."""
        self.expect_mark("(")
        depth = 1
        while depth:
            token = self.token
            if token.kind is TokenKind.END:
                raise self.unexpected()
            depth += token.is_mark("(") - token.is_mark(")")
            self.next()
