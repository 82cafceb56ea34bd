"""PostgreSQL's language, as sqlglot reads it.

``PostgresDialect`` is for queries of the catalogs, ``LakeDialect`` for statements on lake tables.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.tokens import TokenType

from wal2lake.frontend.query.analysis.functions.calls import OWN_NAMES
from wal2lake.frontend.query.analysis.functions.rules import NO_SUCH_FUNCTION

_GRAMMAR: Final = (exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least)
"""Calls of PostgreSQL's grammar, not of functions."""


class PostgresDialect(Postgres):  # type: ignore[misc]
    """sqlglot's, where a call with too many or too few arguments is no error of syntax."""

    class Parser(Postgres.Parser):  # type: ignore[misc]
        """Such a call stays as it is written, and is marked."""

        def validate_expression(
            self, expression: exp.Expression, args: list[Any] | None = None
        ) -> exp.Expression:
            """sqlglot's hook behind each node; ``args`` are a call's."""
            grammar = isinstance(expression, _GRAMMAR)
            if args is None or grammar or not expression.error_messages(args):
                found: exp.Expression = super().validate_expression(expression, args)
                return found
            call = exp.Anonymous(this=self._called(), expressions=list(args))
            call.meta[NO_SUCH_FUNCTION] = True
            return call

        def _called(self) -> str:
            """The name in front of the arguments whose end has been reached."""
            at, depth = self._index, 1
            while depth and at > 0:
                at -= 1
                kind = self._tokens[at].token_type
                depth += (kind == TokenType.R_PAREN) - (kind == TokenType.L_PAREN)
            return str(self._tokens[at - 1].text)


_NOT_SQLGLOTS: Final = OWN_NAMES | {"VARIANCE", "VAR_SAMP", "VAR_POP"}


class LakeDialect(PostgresDialect):
    """PostgreSQL's, without the functions that sqlglot takes for others."""

    # Subscripts stay as written: the parser would shift those alone that it knows as integers.
    INDEX_OFFSET: ClassVar[int] = 0

    class Parser(PostgresDialect.Parser):
        """date_part() is not EXTRACT: its result is double precision."""

        FUNCTIONS: ClassVar[Any] = {
            name: build
            for name, build in PostgresDialect.Parser.FUNCTIONS.items()
            if name not in _NOT_SQLGLOTS
        }
        FUNCTION_PARSERS: ClassVar[Any] = {
            name: read
            for name, read in PostgresDialect.Parser.FUNCTION_PARSERS.items()
            if name not in {*_NOT_SQLGLOTS, "DATE_PART"}
        }
        # PostgreSQL has no lambdas: f(a -> 'b') is an operator, too.
        LAMBDAS: ClassVar[Any] = {
            token: read
            for token, read in PostgresDialect.Parser.LAMBDAS.items()
            if token != TokenType.ARROW
        }
        # One key follows, whatever characters it has, not a path.
        JSON_OPERATORS: ClassVar[Any] = {
            **PostgresDialect.Parser.JSON_OPERATORS,
            TokenType.ARROW: lambda self, this, key: exp.JSONExtract(
                this=this, expression=key
            ),
            TokenType.DARROW: lambda self, this, key: exp.JSONExtractScalar(
                this=this, expression=key
            ),
        }
