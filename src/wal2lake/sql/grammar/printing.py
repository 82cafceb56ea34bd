"""``to_sql``: prints a statement value as text that parses to the same value.

Comes in: a ``Statement``. Goes out: SQL with names quoted where PostgreSQL quotes them. Log lines
and tests use the text. A connection string is printed whole, so a caller that logs the text must
mask the password first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from wal2lake.model import PartitionKey
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.pgtypes.registry.pg_type import format_type
from wal2lake.sql.grammar.access import AccessStatement, access_to_sql
from wal2lake.sql.grammar.altering.alterstatements import (
    AlterTable,
    AlterTableStatement,
    RenameTable,
    RenameTableColumn,
    SetTableSchema,
)
from wal2lake.sql.grammar.altering.printing import alter_table_sql, check_sql
from wal2lake.sql.grammar.publishing.printing import publication_sql
from wal2lake.sql.grammar.publishing.publicationstatements import PublicationStatement
from wal2lake.sql.grammar.quoting import fold, quote_literal
from wal2lake.sql.grammar.statements import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionOwner,
    AlterSubscriptionPublication,
    AlterSubscriptionRefresh,
    AlterSubscriptionRename,
    AlterSubscriptionSet,
    AlterSubscriptionSkip,
    ColumnClause,
    CommentOnSubscription,
    CreatePartition,
    CreateSchema,
    CreateSubscription,
    CreateTable,
    DropSchema,
    DropSubscription,
    DropTable,
    OtherStatement,
    QualifiedName,
    RoleName,
    Statement,
    StatementOption,
    TruncateTable,
    ValueKind,
)

_SERIALS: Final = {21: "smallserial", 23: "serial", 20: "bigserial"}


def to_sql(
    statement: Statement | AlterTableStatement | AccessStatement | PublicationStatement,
) -> str:
    """The statement's text, without a semicolon."""
    if isinstance(statement, PublicationStatement):
        return publication_sql(statement, _definition, _role)
    if isinstance(statement, AccessStatement):
        return access_to_sql(statement)
    match statement:
        case OtherStatement():
            return statement.text
        case CreateSubscription():
            return _create_subscription(statement)
        case DropSubscription():
            return (
                f"DROP SUBSCRIPTION {_if_exists(statement.if_exists)}"
                f"{quote_identifier(statement.name)}{_cascade(statement.cascade)}"
            )
        case CommentOnSubscription():
            return _comment_on_subscription(statement)
        case CreateSchema():
            return _create_schema(statement)
        case DropSchema():
            return (
                f"DROP SCHEMA {_if_exists(statement.if_exists)}"
                f"{_names(statement.names)}{_cascade(statement.cascade)}"
            )
        case CreateTable():
            return _create_table(statement)
        case CreatePartition():
            return _create_partition(statement)
        case AlterTable() | RenameTableColumn() | RenameTable() | SetTableSchema():
            return alter_table_sql(statement, _column)
        case DropTable():
            return (
                f"DROP TABLE {_if_exists(statement.if_exists)}"
                f"{_tables(statement.tables)}{_cascade(statement.cascade)}"
            )
        case TruncateTable():
            restart = " RESTART IDENTITY" if statement.restart_identity else ""
            return (
                f"TRUNCATE {_relations(statement)}{restart}"
                f"{_cascade(statement.cascade)}"
            )
        case _:
            name = quote_identifier(statement.name)
            return f"ALTER SUBSCRIPTION {name} {_alteration(statement)}"


def _create_subscription(statement: CreateSubscription) -> str:
    return (
        f"CREATE SUBSCRIPTION {quote_identifier(statement.name)}"
        f" CONNECTION {quote_literal(statement.conninfo).lstrip()}"
        f" PUBLICATION {_names(statement.publications)}" + _with(statement.options)
    )


def _comment_on_subscription(statement: CommentOnSubscription) -> str:
    text = "NULL"
    if statement.text is not None:
        text = quote_literal(statement.text).lstrip()
    return f"COMMENT ON SUBSCRIPTION {quote_identifier(statement.name)} IS {text}"


def _alteration(
    statement: AlterSubscriptionEnabled
    | AlterSubscriptionConnection
    | AlterSubscriptionRefresh
    | AlterSubscriptionPublication
    | AlterSubscriptionSet
    | AlterSubscriptionSkip
    | AlterSubscriptionOwner
    | AlterSubscriptionRename,
) -> str:
    match statement:
        case AlterSubscriptionEnabled():
            return "ENABLE" if statement.enabled else "DISABLE"
        case AlterSubscriptionConnection():
            return f"CONNECTION {quote_literal(statement.conninfo).lstrip()}"
        case AlterSubscriptionRefresh():
            return f"REFRESH PUBLICATION{_with(statement.options)}"
        case AlterSubscriptionPublication():
            return (
                f"{statement.change.value} PUBLICATION"
                f" {_names(statement.publications)}{_with(statement.options)}"
            )
        case AlterSubscriptionSet():
            return f"SET {_definition(statement.options)}"
        case AlterSubscriptionSkip():
            return f"SKIP {_definition(statement.options)}"
        case AlterSubscriptionOwner():
            return f"OWNER TO {_role(statement.owner)}"
        case AlterSubscriptionRename():
            return f"RENAME TO {quote_identifier(statement.new_name)}"
        case _:
            assert_never(statement)


def _create_schema(statement: CreateSchema) -> str:
    name = "" if statement.name is None else " " + quote_identifier(statement.name)
    owner = statement.authorization
    return (
        "CREATE SCHEMA"
        + (" IF NOT EXISTS" if statement.if_not_exists else "")
        + name
        + (f" AUTHORIZATION {_role(owner)}" if owner else "")
    )


def _create_partition(statement: CreatePartition) -> str:
    return (
        "CREATE TABLE "
        + ("IF NOT EXISTS " if statement.if_not_exists else "")
        + f"{_qualified(statement.table)} PARTITION OF"
        f" {_qualified(statement.parent)} DEFAULT"
    )


def _create_table(statement: CreateTable) -> str:
    elements = [_column(column) for column in statement.columns]
    if statement.key:
        named = (
            f"CONSTRAINT {quote_identifier(statement.key_name)} "
            if statement.key_name is not None
            else ""
        )
        elements.append(
            f"{named}PRIMARY KEY ({_names(statement.key)}){statement.key_deferral.clause}"
        )
    elements += [check_sql(check) for check in statement.checks]
    return (
        "CREATE TABLE "
        + ("IF NOT EXISTS " if statement.if_not_exists else "")
        + f"{_qualified(statement.table)} ({', '.join(elements)})"
        + _partition_by(statement.partition_key)
    )


def _partition_by(key: PartitionKey | None) -> str:
    if key is None:
        return ""
    return f" PARTITION BY {key.strategy.name} ({_names(key.columns)})"


def _column(column: ColumnClause) -> str:
    text = (
        f"{quote_identifier(column.name)} {format_type(column.type_oid, column.typmod)}"
    )
    sequence = column.sequence
    if sequence is not None and not sequence.identity:
        return f"{quote_identifier(column.name)} {_SERIALS[column.type_oid]}"
    if sequence is not None:
        generation = "ALWAYS" if sequence.identity == "a" else "BY DEFAULT"
        text += (
            f" GENERATED {generation} AS IDENTITY (START WITH {sequence.start}"
            f" INCREMENT BY {sequence.increment})"
        )
    if column.default is not None:
        text += f" DEFAULT {column.default}"
    if column.generated is not None:
        text += f" GENERATED ALWAYS AS ({column.generated.text}) STORED"
    return text + (" NOT NULL" if column.not_null else "")


def _names(names: Sequence[str]) -> str:
    return ", ".join(quote_identifier(name) for name in names)


def _qualified(name: QualifiedName) -> str:
    schema = "" if name.schema is None else quote_identifier(name.schema) + "."
    return schema + quote_identifier(name.name)


def _tables(tables: Sequence[QualifiedName]) -> str:
    return ", ".join(_qualified(table) for table in tables)


def _relations(statement: TruncateTable) -> str:
    return ", ".join(
        ("ONLY " if table in statement.only else "") + _qualified(table)
        for table in statement.tables
    )


def _role(role: RoleName) -> str:
    return role.name.upper() if role.keyword else quote_identifier(role.name)


def _if_exists(if_exists: bool) -> str:
    return "IF EXISTS " if if_exists else ""


def _cascade(cascade: bool) -> str:
    return " CASCADE" if cascade else ""


def _with(options: Sequence[StatementOption]) -> str:
    return f" WITH {_definition(options)}" if options else ""


def _definition(options: Sequence[StatementOption]) -> str:
    return "(" + ", ".join(_option(option) for option in options) + ")"


def _option(option: StatementOption) -> str:
    name = _label(option.name)
    if option.value is None:
        return name
    text = option.value.text
    match option.value.kind:
        case ValueKind.STRING:
            text = quote_literal(text).lstrip()
        case ValueKind.WORD:
            text = _word(text)
    return f"{name} = {text}"


def _label(name: str) -> str:
    """An option's name. Reserved words need no quotes there."""
    return (
        name if name.isidentifier() and fold(name) == name else quote_identifier(name)
    )


def _word(text: str) -> str:
    """An option's value as a bare word, or quoted if a bare word would not read back."""
    plain = text.removesuffix("[]")
    suffix = text[len(plain) :]
    if all(part.isidentifier() and part == fold(part) for part in plain.split(".")):
        return plain + suffix
    return quote_identifier(plain) + suffix
