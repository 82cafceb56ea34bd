"""ALTER TABLE statements as values, under the rules of ``grammar.statements``."""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.model import Deferral, Oid, ReplicaIdentity
from wal2lake.sql.grammar.constraints import CheckClause, GeneratedClause
from wal2lake.sql.grammar.statements import ColumnClause, QualifiedName


@dataclass(frozen=True, slots=True)
class AddColumnClause:
    """ADD COLUMN."""

    column: ColumnClause
    if_not_exists: bool = False
    checks: tuple[CheckClause, ...] = ()


@dataclass(frozen=True, slots=True)
class DropColumnClause:
    """DROP COLUMN."""

    name: str
    if_exists: bool = False
    cascade: bool = False
    """CASCADE removes the table from publications whose column list or row filter names it."""


@dataclass(frozen=True, slots=True)
class NotNullClause:
    """ALTER COLUMN ... SET | DROP NOT NULL."""

    name: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class DefaultClause:
    """ALTER COLUMN ... SET | DROP DEFAULT; SET DEFAULT NULL is DROP DEFAULT."""

    name: str
    default: str | None


@dataclass(frozen=True, slots=True)
class ExpressionClause:
    """ALTER COLUMN ... SET | DROP EXPRESSION."""

    name: str
    generated: GeneratedClause | None
    """None: DROP."""
    if_exists: bool = False
    """IF EXISTS, which only DROP may have."""


@dataclass(frozen=True, slots=True)
class TypeClause:
    """ALTER COLUMN ... TYPE."""

    name: str
    type_oid: Oid
    typmod: int = -1
    using: str | None = None
    """The text of the USING expression as written."""


@dataclass(frozen=True, slots=True)
class ReplicaIdentityClause:
    """REPLICA IDENTITY DEFAULT | USING INDEX | FULL | NOTHING."""

    identity: ReplicaIdentity
    index: str | None = None
    """The name of the index of USING INDEX."""


@dataclass(frozen=True, slots=True)
class AddKeyClause:
    """ADD [CONSTRAINT name] PRIMARY KEY."""

    columns: tuple[str, ...]
    name: str | None = None
    deferral: Deferral = Deferral.NO


@dataclass(frozen=True, slots=True)
class AddCheckClause:
    """ADD [CONSTRAINT name] CHECK."""

    check: CheckClause


@dataclass(frozen=True, slots=True)
class DropConstraintClause:
    """DROP CONSTRAINT."""

    name: str
    if_exists: bool = False
    cascade: bool = False
    """CASCADE, which has no effect: nothing depends on a constraint."""


@dataclass(frozen=True, slots=True)
class ParametersClause:
    """SET (name = value, ...) or RESET (name, ...)."""

    parameters: tuple[tuple[str, str | None], ...]
    """None for a parameter that is reset."""


AlterAction = (
    AddCheckClause
    | AddColumnClause
    | AddKeyClause
    | DropConstraintClause
    | DropColumnClause
    | ExpressionClause
    | NotNullClause
    | DefaultClause
    | TypeClause
    | ReplicaIdentityClause
    | ParametersClause
)


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE with a list of actions."""

    table: QualifiedName
    actions: tuple[AlterAction, ...]
    if_exists: bool = False
    only: bool = False


@dataclass(frozen=True, slots=True)
class RenameTableColumn:
    """ALTER TABLE ... RENAME COLUMN ... TO."""

    table: QualifiedName
    name: str
    new_name: str
    if_exists: bool = False
    only: bool = False


@dataclass(frozen=True, slots=True)
class RenameTable:
    """ALTER TABLE ... RENAME TO."""

    table: QualifiedName
    new_name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetTableSchema:
    """ALTER TABLE ... SET SCHEMA."""

    table: QualifiedName
    schema: str
    if_exists: bool = False


AlterTableStatement = AlterTable | RenameTableColumn | RenameTable | SetTableSchema
