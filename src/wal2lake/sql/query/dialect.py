"""Defines PostgreSQL's language for sqlglot's parser.

``PostgresDialect`` is for queries on the system catalogs (``sysviews.query``), ``LakeDialect`` for
statements on lake tables (``translate``). sqlglot's own dialect takes a call with a wrong number of
arguments for a syntax error, and some names for functions of other databases.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.tokens import TokenType

from wal2lake.sql.query.analysis.functions.calls import OWN_NAMES
from wal2lake.sql.query.analysis.functions.rules import NO_SUCH_FUNCTION

_GRAMMAR: Final = (exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least)
"""Calls that belong to PostgreSQL's grammar and are not calls of functions."""


class PostgresDialect(Postgres):  # type: ignore[misc]
    """sqlglot's dialect, except that a wrong number of arguments is not a syntax error."""

    class Parser(Postgres.Parser):  # type: ignore[misc]
        """Keeps a call with a wrong number of arguments as written, and marks it."""

        def validate_expression(
            self, expression: exp.Expression, args: list[Any] | None = None
        ) -> exp.Expression:
            """sqlglot's hook after each node; ``args`` are the arguments of a call."""
            grammar = isinstance(expression, _GRAMMAR)
            if args is None or grammar or not expression.error_messages(args):
                node: exp.Expression = super().validate_expression(expression, args)
                return node
            call = exp.Anonymous(this=self._called(), expressions=list(args))
            call.meta[NO_SUCH_FUNCTION] = True
            return call

        def _called(self) -> str:
            """The name of the call whose closing parenthesis was just parsed."""
            index, depth = self._index, 1
            while depth and index > 0:
                index -= 1
                kind = self._tokens[index].token_type
                depth += (kind == TokenType.R_PAREN) - (kind == TokenType.L_PAREN)
            return str(self._tokens[index - 1].text)


_NOT_SQLGLOTS: Final = OWN_NAMES | {"VARIANCE", "VAR_SAMP", "VAR_POP"}


class LakeDialect(PostgresDialect):
    """PostgreSQL's dialect, without the functions that sqlglot takes for others."""

    # Subscripts stay as written. The parser would shift only those that are integer constants.
    INDEX_OFFSET: ClassVar[int] = 0

    class Parser(PostgresDialect.Parser):
        """Parses date_part() as a function of its own: unlike EXTRACT it returns double
        precision."""

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
        # PostgreSQL has no lambdas: -> is an operator in f(a -> 'b'), too.
        LAMBDAS: ClassVar[Any] = {
            token: read
            for token, read in PostgresDialect.Parser.LAMBDAS.items()
            if token != TokenType.ARROW
        }
        # The right side is a single key, whatever characters it has, and not a path.
        JSON_OPERATORS: ClassVar[Any] = {
            **PostgresDialect.Parser.JSON_OPERATORS,
            TokenType.ARROW: lambda self, this, key: exp.JSONExtract(
                this=this, expression=key
            ),
            TokenType.DARROW: lambda self, this, key: exp.JSONExtractScalar(
                this=this, expression=key
            ),
        }
