"""Defines PostgreSQL's language for sqlglot's parser.

``PostgresDialect`` is for queries on the system catalogs (``sysviews.query``), ``LakeDialect`` for
statements on lake tables (``translate``). ``EngineDialect`` writes catalog queries for DuckDB.
sqlglot's own dialect takes a call with a wrong number of
arguments for a syntax error, and some names for functions of other databases.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.postgres import Postgres
from sqlglot.tokens import TokenType

from wal2lake.sql.query.analysis.functions.arithmetic import OPERATOR
from wal2lake.sql.query.analysis.functions.calls import OWN_NAMES
from wal2lake.sql.query.analysis.functions.rules import NO_SUCH_FUNCTION

_GRAMMAR: Final = (exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least)
"""Calls that belong to PostgreSQL's grammar and are not calls of functions."""


WRITTEN: Final = "written_name"
"""Key in the ``meta`` of a call: the function's name as the client wrote it, in lower case."""

BY_SYNTAX: Final = "by_syntax"
"""Key in the ``meta`` of a call that has words between its arguments, such as FROM."""

KEYWORD: Final = "keyword"
"""Key in the ``meta`` of a window or a filter: its first word as the client wrote it."""

_ALWAYS_SYNTAX: Final = frozenset(("extract", "position", "trim"))

_SYNTAX_CALLS: Final = _ALWAYS_SYNTAX | {"overlay", "substring"}

_TRIMS: Final = {"": "btrim", "BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}

_FIELDS: Final = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND")
"""The words that may follow ``interval`` in a type or behind an interval constant."""


def _interval_type(modifier: str) -> exp.DataType:
    if not modifier:
        return exp.DataType(this=exp.DataType.Type.INTERVAL)
    return exp.DataType(this=exp.Interval(unit=exp.Var(this=modifier)))


class PostgresDialect(Postgres):  # type: ignore[misc]
    """sqlglot's dialect, but a wrong number of arguments is not a syntax error, and intervals are
    parsed by PostgreSQL's grammar."""

    class Parser(Postgres.Parser):  # type: ignore[misc]
        """Keeps a call with a wrong number of arguments as written, and marks it.

        sqlglot would keep only the first unit of a constant such as ``interval '1 day 01:02:03'``,
        so the parser makes an interval constant a cast of its text.
        """

        def _parse_interval(
            self, require_interval: bool = True, parse_function_unit: bool = True
        ) -> exp.Expression | None:
            index = self._index
            if self._match(TokenType.INTERVAL):
                digits = self._precision()
                if self._match(TokenType.STRING):
                    text = exp.Literal.string(self._prev.text)
                    fields = digits or self._fields()
                    return exp.Cast(this=text, to=_interval_type(fields))
                self._retreat(index)
            tree: exp.Expression | None = super()._parse_interval(
                require_interval, parse_function_unit
            )
            return tree

        def _parse_types(
            self, check_func: bool = False, *args: Any, **kwargs: Any
        ) -> exp.Expression | None:
            if check_func or not self._match(TokenType.INTERVAL):
                tree: exp.Expression | None = super()._parse_types(
                    check_func, *args, **kwargs
                )
                return tree
            kind = _interval_type(self._precision() or self._fields())
            while self._match_pair(TokenType.L_BRACKET, TokenType.R_BRACKET):
                kind = exp.DataType(
                    this=exp.DataType.Type.ARRAY, expressions=[kind], nested=True
                )
            return kind

        def _parse_function_call(
            self, *args: Any, **kwargs: Any
        ) -> exp.Expression | None:
            """Record the name that the client wrote: sqlglot has one class for several names."""
            first, start = self._curr, self._index
            parsed: exp.Expression | None = super()._parse_function_call(
                *args, **kwargs
            )
            called = parsed
            while isinstance(called, (exp.Window, exp.Filter, exp.WithinGroup)):
                called = called.this
            if isinstance(called, (exp.Func, exp.Mod)):
                name = first.text.lower()
                if name in _SYNTAX_CALLS and self._has_words(start):
                    called.meta[BY_SYNTAX] = True
                    side = str(called.args.get("position") or "")
                    name = f"pg_catalog.{_TRIMS[side] if name == 'trim' else name}"
                called.meta[WRITTEN] = name
            return parsed

        def _has_words(self, start: int) -> bool:
            """Whether the call that begins at this token has words between its arguments."""
            if self._tokens[start].text.lower() in _ALWAYS_SYNTAX:
                return True
            depth = 0
            for token in self._tokens[start + 1 : self._index]:
                depth += token.token_type == TokenType.L_PAREN
                depth -= token.token_type == TokenType.R_PAREN
                if depth == 1 and token.text.upper() in ("FROM", "FOR", "PLACING"):
                    return True
                if depth == 0:
                    break
            return False

        def _parse_window(
            self, this: exp.Expression | None, alias: bool = False
        ) -> exp.Expression | None:
            keyword = self._curr.text if self._curr else ""
            parsed: exp.Expression | None = super()._parse_window(this, alias)
            if parsed is not this and isinstance(parsed, (exp.Window, exp.Filter)):
                parsed.meta[KEYWORD] = keyword
            return parsed

        def _parse_column_ops(
            self, this: exp.Expression | None
        ) -> exp.Expression | None:
            """Parse ``pg_catalog.count(*) filter (...)``, whose schema belongs to the function."""
            parsed: exp.Expression | None = super()._parse_column_ops(this)
            if isinstance(parsed, exp.Column) and isinstance(parsed.this, exp.Filter):
                schema, filtered = parsed.args["table"], parsed.this
                called = exp.Dot(this=schema, expression=filtered.this)
                filtered.set("this", called)
                return filtered
            if isinstance(parsed, exp.Window) and isinstance(parsed.this, exp.Dot):
                schema, filtered = parsed.this.this, parsed.this.expression
                if isinstance(filtered, exp.Filter):
                    called = exp.Dot(this=schema, expression=filtered.this)
                    filtered.set("this", called)
                    parsed.set("this", filtered)
            return parsed

        def _precision(self) -> str:
            """Parse ``(2)`` if it comes next; return its text, or an empty text."""
            index = self._index
            if self._match(TokenType.L_PAREN) and self._match(TokenType.NUMBER):
                digits = self._prev.text
                if self._match(TokenType.R_PAREN):
                    return f"({digits})"
            self._retreat(index)
            return ""

        def _fields(self) -> str:
            """Parse ``DAY TO SECOND(2)`` if it comes next; return its text, or an empty text."""
            words: list[str] = []
            while self._match_texts(("TO",) if len(words) % 2 else _FIELDS):
                words.append(self._prev.text.upper())
            fields = " ".join(words)
            return fields + self._precision() if fields.endswith("SECOND") else fields

        def _parse_unary(self) -> exp.Expression | None:
            """Parse ``@``, which sqlglot takes for the beginning of a parameter's name."""
            token = self._curr
            if token and token.token_type == TokenType.PARAMETER and token.text == "@":
                self._advance()
                # Arithmetic binds tighter than this operator.
                node = exp.Abs(this=self._parse_term())
                node.meta[OPERATOR] = "@"
                return node
            parsed: exp.Expression | None = super()._parse_unary()
            return parsed

        def _parse_operator(self, this: exp.Expression | None) -> exp.Expression | None:
            node = super()._parse_operator(this)
            return _plain_operator(node) if isinstance(node, exp.Operator) else node

        def _parse_type_size(self) -> exp.DataTypeParam | None:
            """Parse a type modifier, which may be a negative scale of a numeric."""
            sign = "-" if self._match(TokenType.DASH) else ""
            size: exp.DataTypeParam | None = super()._parse_type_size()
            if sign and size is not None and isinstance(size.this, exp.Literal):
                size.set("this", exp.Literal.number(f"-{size.this.name}"))
            return size

        def validate_expression(
            self, expression: exp.Expression, args: list[Any] | None = None
        ) -> exp.Expression:
            """sqlglot's hook after each node; ``args`` are the arguments of a call."""
            grammar = isinstance(expression, _GRAMMAR)
            if args is None or grammar or not expression.error_messages(args):
                node: exp.Expression = super().validate_expression(expression, args)
                return node
            call = exp.Anonymous(this=self._called_name(), expressions=list(args))
            call.meta[NO_SUCH_FUNCTION] = True
            return call

        def _called_name(self) -> str:
            """The name of the call whose closing parenthesis was just parsed."""
            index, depth = self._index, 1
            while depth and index > 0:
                index -= 1
                kind = self._tokens[index].token_type
                depth += (kind == TokenType.R_PAREN) - (kind == TokenType.L_PAREN)
            return str(self._tokens[index - 1].text)


_NOT_SQLGLOTS: Final = OWN_NAMES | {"VARIANCE", "VAR_SAMP", "VAR_POP"}


def _plain_operator(node: exp.Operator) -> exp.Expression:
    """Return the tree of ``a op b`` for ``a OPERATOR(pg_catalog.op) b``, which the manual's section
    4.2.5 says mean the same. An operator that is not known stays as it is."""
    schema, _, name = str(node.args["operator"]).rpartition(".")
    if (
        schema.strip('"') not in ("", "pg_catalog")
        or not node.this
        or not node.expression
    ):
        return node
    try:
        tree = sqlglot.parse_one(f"a {name.strip()} b", read=PostgresDialect)
    except sqlglot.errors.ParseError:
        return node
    operands = {column.name: column for column in tree.find_all(exp.Column)}
    whole = tree.this if isinstance(tree, exp.Not) else tree
    if set(operands) != {"a", "b"} or any(
        column.parent is not whole for column in operands.values()
    ):
        return node
    for column, operand in zip(
        (operands["a"], operands["b"]), (node.this, node.expression), strict=True
    ):
        nested = isinstance(operand, exp.Binary | exp.Not | exp.Between | exp.In)
        column.replace(exp.Paren(this=operand) if nested else operand)
    return tree


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


def _string_agg(writer: Any, node: exp.GroupConcat) -> str:
    """Write string_agg() with its own ORDER BY.

    sqlglot's writer takes the first ORDER BY that it finds below the call, which may be one of a
    subquery in an argument."""
    value, separator = node.this, node.args.get("separator")
    order = ""
    for part in (value, separator):
        if isinstance(part, exp.Order):
            listed = writer.expressions(part, flat=True)
            order = f" ORDER BY {listed}"
    texts = [
        writer.sql(part.this if isinstance(part, exp.Order) else part)
        for part in (value, separator)
        if part is not None
    ]
    return f"STRING_AGG({', '.join(texts)}{order})"


class EngineDialect(DuckDB):  # type: ignore[misc]
    """DuckDB's dialect, in which string_agg() keeps its ORDER BY."""

    class Generator(DuckDB.Generator):  # type: ignore[misc]
        """Writes the text that the engine reads."""

        TRANSFORMS: ClassVar[Any] = {
            **DuckDB.Generator.TRANSFORMS,
            exp.GroupConcat: _string_agg,
        }
