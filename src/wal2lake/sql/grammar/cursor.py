"""A cursor over the tokens of one statement, with PostgreSQL's syntax errors.

Comes in: a statement's text. Goes out: names, strings and lists, or a SqlSyntaxError with the
token and the position of the error. The parsers of this room share one cursor for a statement.
Each rule of gram.y that several parsers use is one method of the cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError
from wal2lake.model import DATABASE
from wal2lake.pgtypes.keywords import NOT_COLUMN_NAMES
from wal2lake.sql.grammar.lexer import Token, TokenKind, syntax_error, tokens
from wal2lake.sql.grammar.statements import QualifiedName, RoleName

_T = TypeVar("_T")

_ROLE_KEYWORDS: Final = ("current_role", "current_user", "session_user")


class TokenCursor:
    """The tokens of one statement, and the parser's position in them."""

    __slots__ = ("_at", "_tokens", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = list(tokens(text))
        # A trailing semicolon is not part of the statement, but a caller may leave it there.
        while len(self._tokens) > 1 and self._tokens[-2].is_mark(";"):
            del self._tokens[-2]
        self._at = 0

    @property
    def token(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._at]

    def ahead(self, distance: int) -> Token:
        """The token ``distance`` places after the next one; END if there is none."""
        return self._tokens[min(self._at + distance, len(self._tokens) - 1)]

    def next(self) -> Token:
        """Take the next token. END can be taken any number of times."""
        token = self._tokens[self._at]
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def previous_end(self) -> int:
        """The position behind the last token that was taken."""
        return self._tokens[self._at - 1].end if self._at else 0

    def unexpected(self, token: Token | None = None) -> SqlSyntaxError:
        """``syntax error at or near ...`` for the next token."""
        token = token or self.token
        start = token.start
        if token.kind is TokenKind.END:
            # PostgreSQL points behind the last character; trailing white space counts.
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
        """Take these words, or raise a syntax error at the first that is missing."""
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
        """Take a punctuation mark, or raise a syntax error."""
        if not self.take_mark(mark):
            raise self.unexpected()

    def expect_end(self) -> None:
        """Raise a syntax error unless all tokens have been taken."""
        if self.token.kind is not TokenKind.END:
            raise self.unexpected()

    # ---- rules ------------------------------------------------------------------------

    def name(self) -> str:
        """ColId: a name of a table, a column or a subscription."""
        token = self.token
        if token.kind is TokenKind.QUOTED or (
            token.kind is TokenKind.WORD and token.value not in NOT_COLUMN_NAMES
        ):
            return self.next().value
        raise self.unexpected()

    def label(self) -> str:
        """ColLabel: any word, reserved or not."""
        if self.token.kind in (TokenKind.WORD, TokenKind.QUOTED):
            return self.next().value
        raise self.unexpected()

    def string(self) -> str:
        """Sconst: a string constant."""
        if self.token.kind is TokenKind.STRING:
            return self.next().value
        raise self.unexpected()

    def commas(self, rule: Callable[[], _T]) -> tuple[_T, ...]:
        """Apply ``rule`` once for each item of a list with commas; at least one item."""
        items = [rule()]
        while self.take_mark(","):
            items.append(rule())
        return tuple(items)

    def qualified_name(self) -> QualifiedName:
        """qualified_name: ``name``, ``schema.name`` or ``database.schema.name``.

        The database must be the node's own. The parts after the first may be any word.
        """
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
        """RoleSpec: a role's name, or a keyword that stands for a role."""
        if self.token.is_word(*_ROLE_KEYWORDS):
            return RoleName(self.next().value, keyword=True)
        token = self.token
        name = self.name()
        if name == "none":
            # "none" in quotes is reserved, too.
            raise syntax_error(
                'role name "none" is reserved', token.start, sqlstate="42939"
            )
        return RoleName(name)

    def if_exists(self) -> bool:
        """[IF EXISTS]. ``if`` alone may be a name, so both words must come next."""
        return self.take("if", "exists")

    def cascade(self) -> bool:
        """[CASCADE | RESTRICT]."""
        if self.take("cascade"):
            return True
        self.take("restrict")
        return False

    def skip_parentheses(self) -> None:
        """Take a balanced ``( ... )``, which must come next."""
        self.expect_mark("(")
        depth = 1
        while depth:
            token = self.token
            if token.kind is TokenKind.END:
                raise self.unexpected()
            depth += token.is_mark("(") - token.is_mark(")")
            self.next()
