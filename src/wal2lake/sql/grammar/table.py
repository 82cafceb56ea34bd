"""Parses CREATE TABLE, DROP TABLE, TRUNCATE, CREATE SCHEMA and DROP SCHEMA.

Comes in: a cursor behind the first words. Goes out: a statement value with folded names and
resolved types. A lake table has columns, types, NOT NULL, defaults, identities, stored generated
columns, CHECK constraints and a primary key. Any other clause of PostgreSQL's CREATE TABLE is
refused with 0A000 and the clause's name, never ignored in silence. A partitioned table has one
partition, the default partition, which takes every row: a node does not evaluate bounds.

A default is kept as its text. The text ends where the next column constraint begins. The tokens
alone show where that is, because gram.y allows only a b_expr in DEFAULT.

Source: gram.y, CreateStmt, columnDef, ColConstraint, TableConstraint, PartitionSpec, TruncateStmt;
parse_utilcmd.c for the checks of keys and NOT NULL, tablecmds.c and indexcmds.c for those of
partitioned tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from wal2lake.errors import (
    FeatureNotSupportedError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.model import Deferral, Oid, PartitionKey, PartitionStrategy
from wal2lake.pgtypes.keywords import RESERVED
from wal2lake.pgtypes.registry.pg_type import format_type, type_by_oid
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.grammar.constraints import (
    CheckClause,
    check_clause,
    deferral,
    misplaced,
    stored_generation,
)
from wal2lake.sql.grammar.constraints.columnsources import (
    check_generation,
    check_one_source,
)
from wal2lake.sql.grammar.constraints.sequenceoptions import (
    SEQUENCE_BITS,
    sequence_options,
    serial_type,
)
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import Token, TokenKind, syntax_error
from wal2lake.sql.grammar.options import (
    clustering_columns,
    partition_columns,
    storage_parameters,
)
from wal2lake.sql.grammar.statements import (
    ColumnClause,
    CreatePartition,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    QualifiedName,
    SequenceClause,
    TruncateTable,
)
from wal2lake.sql.grammar.tableas import CreateTableAs, table_as

_AFTER_TYPE: Final = frozenset(
    (
        "check",
        "collate",
        "compression",
        "constraint",
        "default",
        "deferrable",
        "generated",
        "initially",
        "not",
        "null",
        "primary",
        "references",
        "storage",
        "unique",
        "using",
    )
)
"""Words that end a type or a default.

They begin a column constraint; USING begins a clause of ALTER TABLE.
"""

_REFUSED_COLUMN_CONSTRAINTS: Final = {
    "compression": "COMPRESSION",
    "references": "FOREIGN KEY constraints",
    "storage": "STORAGE",
    "unique": "UNIQUE constraints",
}
_REFUSED_TABLE_CONSTRAINTS: Final = {
    "exclude": "EXCLUDE constraints",
    "foreign": "FOREIGN KEY constraints",
    "like": "LIKE",
    "unique": "UNIQUE constraints",
}
_REFUSED_TABLE_OPTIONS: Final = {
    "inherits": "INHERITS",
    "on": "ON COMMIT",
    "partition": "partitioned tables",
    "tablespace": "tablespaces",
    "using": "table access methods",
    "without": "WITHOUT OIDS",
    "of": "typed tables",
}


_SINGULAR: Final = (
    "COMPRESSION",
    "INCLUDE",
    "INHERITS",
    "LIKE",
    "ON COMMIT",
    "STORAGE",
    "WITHOUT OIDS",
)


_STRATEGIES: Final = {
    "list": PartitionStrategy.LIST,
    "range": PartitionStrategy.RANGE,
}

_DEFAULT_PARTITION_ONLY: Final = (
    "A partitioned table has one partition here, with all rows:"
    " CREATE TABLE ... PARTITION OF ... DEFAULT."
)


def refused(clause: str, hint: str | None = None) -> FeatureNotSupportedError:
    verb = "is" if clause in _SINGULAR else "are"
    return FeatureNotSupportedError(
        f"{clause} {verb} not supported on lake tables", hint=hint
    )


@dataclass(slots=True)
class TableClauses:
    """The clauses of a table that the parser has read so far."""

    name: QualifiedName
    columns: list[ColumnClause] = field(default_factory=list)
    nullable: set[str] = field(default_factory=set)
    """The columns that are declared NULL."""
    key: tuple[str, ...] | None = None
    key_name: str | None = None
    key_deferral: Deferral = Deferral.NO
    checks: list[CheckClause] = field(default_factory=list)

    def set_key(
        self, columns: tuple[str, ...], name: str | None, deferral: Deferral
    ) -> None:
        """Record the primary key; raises 42P16 if the table already has one."""
        if self.key is not None:
            raise UsageError(
                f'multiple primary keys for table "{self.name.name}" are not allowed',
                sqlstate="42P16",
            )
        self.key, self.key_name, self.key_deferral = columns, name, deferral


def create_table(
    cursor: TokenCursor,
) -> CreateTable | CreatePartition | CreateTableAs:
    """CREATE TABLE [IF NOT EXISTS] name ( ... ) [PARTITION BY ...],
    ... PARTITION OF parent DEFAULT, or ... AS query."""
    if_not_exists = cursor.take("if", "not", "exists")
    table = TableClauses(cursor.qualified_name())
    if cursor.take("partition", "of"):
        return _partition(cursor, table.name, if_not_exists)
    filled = table_as(cursor, table.name, if_not_exists=if_not_exists)
    if filled is not None:
        return filled
    _refuse_options(cursor)
    cursor.expect_mark("(")
    if not cursor.take_mark(")"):
        cursor.commas(lambda: _element(cursor, table))
        cursor.expect_mark(")")
    partition_key = _partition_key(cursor)
    _refuse_options(cursor)
    parameters: tuple[tuple[str, str], ...] = ()
    if cursor.take("with"):
        parameters = storage_parameters(cursor)
    _refuse_options(cursor)
    cursor.expect_end()
    return _checked_table(table, if_not_exists, partition_key, parameters)


def _partition(
    cursor: TokenCursor, name: QualifiedName, if_not_exists: bool
) -> CreatePartition:
    parent = cursor.qualified_name()
    if cursor.take_mark("("):
        raise refused("columns and constraints of a partition")
    if cursor.at_words("for", "values"):
        raise refused("bounds of partitions", _DEFAULT_PARTITION_ONLY)
    cursor.expect("default")
    if cursor.at_words("partition", "by"):
        raise refused("partitions of partitions", _DEFAULT_PARTITION_ONLY)
    _refuse_options(cursor)
    cursor.expect_end()
    return CreatePartition(name, parent, if_not_exists)


def _partition_key(cursor: TokenCursor) -> PartitionKey | None:
    if not cursor.take("partition", "by"):
        return None
    named = cursor.token
    strategy = cursor.name()
    if strategy == "hash":
        raise refused(
            "hash-partitioned tables", f"Use LIST or RANGE. {_DEFAULT_PARTITION_ONLY}"
        )
    if strategy not in _STRATEGIES:
        error = syntax_error(
            f'unrecognized partitioning strategy "{strategy}"', named.start
        )
        error.sqlstate = "22023"
        raise error
    cursor.expect_mark("(")
    columns = cursor.commas(lambda: _partition_column(cursor))
    cursor.expect_mark(")")
    if strategy == "list" and len(columns) > 1:
        raise UsageError(
            'cannot use "list" partition strategy with more than one column',
            sqlstate="42P17",
        )
    return PartitionKey(_STRATEGIES[strategy], columns)


def _partition_column(cursor: TokenCursor) -> str:
    following = cursor.ahead(1)
    if cursor.token.is_mark("(") or following.is_mark("("):
        raise refused("expressions in partition keys")
    name = cursor.name()
    if following.kind in (TokenKind.WORD, TokenKind.QUOTED):
        raise refused("collations and operator classes of partition keys")
    return name


def drop_table(cursor: TokenCursor) -> DropTable:
    """DROP TABLE [IF EXISTS] names [CASCADE | RESTRICT]."""
    if_exists = cursor.if_exists()
    tables = cursor.commas(cursor.qualified_name)
    cascade = cursor.cascade()
    cursor.expect_end()
    return DropTable(tables, if_exists, cascade)


def truncate(cursor: TokenCursor) -> TruncateTable:
    """TRUNCATE [TABLE] names [RESTART | CONTINUE IDENTITY] [CASCADE | RESTRICT]."""
    cursor.take("table")
    only: list[QualifiedName] = []
    tables = cursor.commas(lambda: _relation(cursor, only))
    restart = cursor.take("restart", "identity")
    if not restart:
        cursor.take("continue", "identity")
    cascade = cursor.cascade()
    cursor.expect_end()
    return TruncateTable(tables, tuple(only), restart, cascade)


def create_schema(cursor: TokenCursor) -> CreateSchema:
    """CREATE SCHEMA [IF NOT EXISTS] [name] [AUTHORIZATION role]."""
    if_not_exists = cursor.take("if", "not", "exists")
    name = None if cursor.at_words("authorization") else cursor.name()
    if name is not None and name.startswith("pg_"):
        raise UsageError(
            f'unacceptable schema name "{name}"',
            sqlstate="42939",
            detail='The prefix "pg_" is reserved for system schemas.',
        )
    owner = cursor.role() if cursor.take("authorization") else None
    if cursor.token.is_word("create", "grant"):
        if if_not_exists:
            raise FeatureNotSupportedError(
                "CREATE SCHEMA IF NOT EXISTS cannot include schema elements"
            )
        raise FeatureNotSupportedError(
            "schema elements are not supported in CREATE SCHEMA"
        )
    cursor.expect_end()
    return CreateSchema(name, if_not_exists, owner)


def drop_schema(cursor: TokenCursor) -> DropSchema:
    """DROP SCHEMA [IF EXISTS] names [CASCADE | RESTRICT]."""
    if_exists = cursor.if_exists()
    names = cursor.commas(cursor.name)
    cascade = cursor.cascade()
    cursor.expect_end()
    return DropSchema(names, if_exists, cascade)


def _relation(cursor: TokenCursor, only: list[QualifiedName]) -> QualifiedName:
    """relation_expr: ONLY t, ONLY (t), t, t *. A name with ONLY is also appended to ``only``."""
    if cursor.take("only"):
        in_parentheses = cursor.take_mark("(")
        name = cursor.qualified_name()
        if in_parentheses:
            cursor.expect_mark(")")
        only.append(name)
        return name
    name = cursor.qualified_name()
    cursor.take_mark("*")
    return name


def _refuse_options(cursor: TokenCursor) -> None:
    word = cursor.token
    if word.kind is TokenKind.WORD and word.value in _REFUSED_TABLE_OPTIONS:
        raise refused(_REFUSED_TABLE_OPTIONS[word.value])


# ---- columns ---------------------------------------------------------------------------


def _element(cursor: TokenCursor, table: TableClauses) -> None:
    if cursor.take("constraint"):
        table_constraint(cursor, table, cursor.name())
    elif cursor.token.is_word(
        "primary", "not", "check", *_REFUSED_TABLE_CONSTRAINTS
    ) and (
        # "exclude" is not reserved, so it may name a column.
        not cursor.at_words("exclude") or not _names_column(cursor)
    ):
        table_constraint(cursor, table, None)
    else:
        column_clause(cursor, table)


def _names_column(cursor: TokenCursor) -> bool:
    following = cursor.ahead(1)
    return following.kind in (TokenKind.WORD, TokenKind.QUOTED) and not (
        following.is_word("using")
    )


def table_constraint(
    cursor: TokenCursor, table: TableClauses, name: str | None
) -> None:
    """TableConstraint, behind ``CONSTRAINT name`` if the constraint has a name."""
    word = cursor.token
    if cursor.take("primary"):
        cursor.expect("key")
        if cursor.at_words("using"):
            raise refused("indexes")
        cursor.expect_mark("(")
        columns = cursor.commas(cursor.name)
        cursor.expect_mark(")")
        table.set_key(columns, name, _key_options(cursor, of_table=True))
    elif cursor.take("check"):
        table.checks.append(check_clause(cursor, name, of_table=True))
    elif cursor.take("not"):
        cursor.expect("null")
        column = cursor.name()
        _check_not_null_name(table, column, name)
        table.columns = [
            replace(c, not_null=True) if c.name == column else c for c in table.columns
        ]
        if all(c.name != column for c in table.columns):
            raise UndefinedObjectError(
                f'column "{column}" of relation "{table.name.name}" does not exist',
                sqlstate="42703",
            )
    elif word.kind is TokenKind.WORD and word.value in _REFUSED_TABLE_CONSTRAINTS:
        raise refused(_REFUSED_TABLE_CONSTRAINTS[word.value])
    else:
        raise cursor.unexpected()


def column_clause(cursor: TokenCursor, table: TableClauses) -> None:
    """columnDef: read a column's definition and append the column to ``table``."""
    name = cursor.name()
    serial = serial_type(cursor, name)
    oid, typmod = (serial, -1) if serial is not None else column_type(cursor, name)
    column = ColumnClause(name, oid, typmod)
    if serial is not None:
        column = replace(column, not_null=True, sequence=SequenceClause())
    stated_default = serial is not None
    while cursor.token.kind is TokenKind.WORD:
        constraint = cursor.name() if cursor.take("constraint") else None
        word = cursor.token
        no_constraint = misplaced(cursor)
        if no_constraint is not None:
            raise no_constraint
        if cursor.take("not"):
            cursor.expect("null")
            _check_not_null_name(table, name, constraint)
            if name in table.nullable:
                raise _conflicting_null(table, name, word)
            column = replace(column, not_null=True)
        elif cursor.take("null"):
            if column.not_null or (table.key and name in table.key):
                raise _conflicting_null(table, name, word)
            table.nullable.add(name)
        elif cursor.take("default"):
            if stated_default:
                raise syntax_error(
                    f'multiple default values specified for column "{name}" of'
                    f' table "{table.name.name}"',
                    word.start,
                )
            stated_default = True
            check_one_source(table.name.name, column, word)
            column = replace(column, default=default_text(cursor))
        elif cursor.at_words("generated"):
            column = _generated(cursor, table, column, word, stated_default)
        elif cursor.take("primary"):
            cursor.expect("key")
            key_deferral = _key_options(cursor, of_table=False)
            if name in table.nullable:
                raise _conflicting_null(table, name, word)
            table.set_key((name,), constraint, key_deferral)
        elif cursor.take("collate"):
            collation(cursor)
        elif cursor.take("check"):
            table.checks.append(check_clause(cursor, constraint, of_table=False))
        elif word.kind is TokenKind.WORD and word.value in _REFUSED_COLUMN_CONSTRAINTS:
            raise refused(_REFUSED_COLUMN_CONSTRAINTS[word.value])
        else:
            raise cursor.unexpected()
    table.columns.append(column)


def _generated(
    cursor: TokenCursor,
    table: TableClauses,
    column: ColumnClause,
    word: Token,
    stated_default: bool,
) -> ColumnClause:
    """GENERATED ALWAYS | BY DEFAULT AS IDENTITY [( options )], ALWAYS AS ( expression ) STORED."""
    cursor.next()
    when = cursor.token
    always = cursor.take("always")
    if not always:
        cursor.expect("by")
        cursor.expect("default")
    cursor.expect("as")
    if cursor.token.is_mark("("):
        if not always:
            text = "for a generated column, GENERATED ALWAYS must be specified"
            raise syntax_error(text, when.start)
        clause = stored_generation(cursor)
        check_generation(table.name.name, column, word, has_default=stated_default)
        return replace(column, generated=clause)
    cursor.expect("identity")
    check_one_source(table.name.name, column, word)
    if stated_default:
        raise syntax_error(
            f'both default and identity specified for column "{column.name}" of table'
            f' "{table.name.name}"',
            word.start,
        )
    if column.type_oid not in SEQUENCE_BITS:
        raise UsageError(
            "identity column type must be smallint, integer, or bigint",
            sqlstate="22023",
        )
    if column.name in table.nullable:
        raise _conflicting_null(table, column.name, word)
    start, increment = sequence_options(cursor, column.type_oid)
    sequence = SequenceClause("a" if always else "d", start, increment)
    return replace(column, not_null=True, sequence=sequence)


def _conflicting_null(table: TableClauses, column: str, word: Token) -> SqlSyntaxError:
    return syntax_error(
        f'conflicting NULL/NOT NULL declarations for column "{column}" of'
        f' table "{table.name.name}"',
        word.start,
    )


def _check_not_null_name(table: TableClauses, column: str, name: str | None) -> None:
    """Refuse a name of a NOT NULL constraint, unless it is the default name.

    The catalog stores NOT NULL without a name.
    """
    if name is not None and name != f"{table.name.name}_{column}_not_null":
        raise refused("names of NOT NULL constraints")


def _key_options(cursor: TokenCursor, *, of_table: bool) -> Deferral:
    """Read the clauses behind PRIMARY KEY; only deferral is supported."""
    if cursor.token.is_word("include"):
        raise refused("INCLUDE")
    if cursor.token.is_word("with"):
        raise refused("storage parameters")
    if cursor.at_words("using", "index"):
        raise refused("tablespaces")
    return deferral(cursor, of_table=of_table)


def collation(cursor: TokenCursor) -> None:
    """Take a collation's name, which must be "C" or "default".

    Lake tables compare text by its bytes, so both mean the same.
    """
    name = cursor.qualified_name()
    if name.schema not in (None, "pg_catalog") or name.name not in ("C", "default"):
        raise FeatureNotSupportedError(
            f'collation "{name.name}" is not supported on lake tables'
        )


def column_type(cursor: TokenCursor, column: str) -> tuple[Oid, int]:
    """Typename: take the tokens up to the next constraint, and let ``pgtypes`` parse them."""
    first = cursor.token
    if first.is_word("setof"):
        raise UsageError(
            f'column "{column}" cannot be declared SETOF', sqlstate="42P16"
        )
    depth = 0
    while True:
        token = cursor.token
        if token.kind is TokenKind.END or (
            depth == 0
            and (
                token.is_mark(",")
                or token.is_mark(")")
                or (token.kind is TokenKind.WORD and token.value in _AFTER_TYPE)
            )
        ):
            break
        depth += token.is_mark("(") - token.is_mark(")")
        cursor.next()
    text = cursor.text[first.start : cursor.previous_end()]
    if cursor.token is first:
        # For a column without a type PostgreSQL reports the next mark, even if that is ).
        raise cursor.unexpected()
    try:
        oid, typmod = parse_type_name(text)
    except SqlSyntaxError as error:
        if error.position:
            if error.message.endswith("end of input"):
                raise cursor.unexpected() from None
            error.position += first.start
        raise
    declared = type_by_oid(oid)
    if declared is not None and declared.kind == "p":
        raise UsageError(
            f'column "{column}" has pseudo-type {format_type(oid)}', sqlstate="42P16"
        )
    return oid, typmod


def default_text(cursor: TokenCursor, *, whole: bool = False) -> str | None:
    """Take the expression of DEFAULT and return its text; None for the constant NULL.

    With ``whole``, the expression is that of USING: it ends only at a comma or at the end of the
    statement, and may name columns.
    """
    start = cursor.token.start
    depth = token_count = 0
    operand = False
    last = cursor.token
    while True:
        token = cursor.token
        if token.kind is TokenKind.END:
            # The expression may end an ALTER TABLE. In CREATE TABLE a parenthesis must follow.
            if token_count and not depth:
                break
            raise cursor.unexpected()
        if depth == 0 and (token.is_mark(",") or token.is_mark(")")):
            break
        if (
            depth == 0
            and operand
            and not whole
            and token.kind is TokenKind.WORD
            and token.value in _AFTER_TYPE
        ):
            break
        if depth and token.is_word("select", "with", "values"):
            place = "transform" if whole else "DEFAULT"
            raise FeatureNotSupportedError(f"cannot use subquery in {place} expression")
        depth += token.is_mark("(") + token.is_mark("[")
        depth -= token.is_mark(")") + token.is_mark("]")
        operand = token.kind is not TokenKind.OPERATOR and not token.is_mark("::")
        last = cursor.next()
        token_count += 1
    if not operand:
        raise cursor.unexpected()
    text = cursor.text[start : cursor.previous_end()]
    if text.lower() == "null":
        return None
    if whole:
        return text
    if token_count == 1 and (
        last.kind is TokenKind.QUOTED
        or (last.kind is TokenKind.WORD and last.value not in RESERVED)
    ):
        raise FeatureNotSupportedError(
            "cannot use column reference in DEFAULT expression"
        )
    return text


def _checked_table(
    table: TableClauses,
    if_not_exists: bool,
    partition_key: PartitionKey | None,
    parameters: tuple[tuple[str, str], ...],
) -> CreateTable:
    """Make the checks that need the whole table, and set NOT NULL for the columns of the key."""
    column_names: set[str] = set()
    for column in table.columns:
        if column.name in column_names:
            raise UsageError(
                f'column "{column.name}" specified more than once', sqlstate="42701"
            )
        column_names.add(column.name)
    key = table.key or ()
    for index, name in enumerate(key):
        if name not in column_names:
            raise UndefinedObjectError(
                f'column "{name}" named in key does not exist', sqlstate="42703"
            )
        if name in key[:index]:
            raise UsageError(
                f'column "{name}" appears twice in primary key constraint',
                sqlstate="42701",
            )
        if name in table.nullable:
            raise SqlSyntaxError(
                f'conflicting NULL/NOT NULL declarations for column "{name}" of'
                f' table "{table.name.name}"'
            )
    columns = tuple(
        replace(c, not_null=True) if c.name in key else c for c in table.columns
    )
    if partition_key is not None:
        _check_partition_key(table.name.name, partition_key, column_names, key)
    return CreateTable(
        table.name,
        columns,
        key,
        table.key_name,
        if_not_exists,
        partition_key,
        parameters,
        partition_columns(parameters, [c.name for c in table.columns]),
        clustering_columns(parameters, [c.name for c in table.columns]),
        table.key_deferral,
        tuple(table.checks),
    )


def _check_partition_key(
    table: str, partition_key: PartitionKey, columns: set[str], key: tuple[str, ...]
) -> None:
    for name in partition_key.columns:
        if name not in columns:
            raise UndefinedObjectError(
                f'column "{name}" named in partition key does not exist',
                sqlstate="42703",
            )
    for name in partition_key.columns:
        if key and name not in key:
            raise FeatureNotSupportedError(
                "unique constraint on partitioned table must include all partitioning"
                " columns",
                detail=f'PRIMARY KEY constraint on table "{table}" lacks column'
                f' "{name}" which is part of the partition key.',
            )
