"""Statements about publications as values, under the rules of ``grammar.statements``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from wal2lake.sql.grammar.publishing.expressions import RawExpression
from wal2lake.sql.grammar.statements import (
    QualifiedName,
    RoleName,
    StatementOption,
)


@dataclass(frozen=True, slots=True)
class WhereClause:
    """A row filter."""

    text: str
    """The expression as written, without the parentheses around it."""
    expression: RawExpression = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PublicationTable:
    """TABLE name [(columns)] [WHERE (...)]."""

    name: QualifiedName
    columns: tuple[str, ...] | None = None
    where: WhereClause | None = None
    only: bool = False


@dataclass(frozen=True, slots=True)
class PublicationSchema:
    """TABLES IN SCHEMA name."""

    name: str | None
    """None: CURRENT_SCHEMA."""


PublicationObject = PublicationTable | PublicationSchema


@dataclass(frozen=True, slots=True)
class CreatePublication:
    """CREATE PUBLICATION."""

    name: str
    all_tables: bool = False
    objects: tuple[PublicationObject, ...] = ()
    options: tuple[StatementOption, ...] = ()


class ObjectsChange(Enum):
    """The ways in which ALTER PUBLICATION changes the list of objects."""

    ADD = "ADD"
    SET = "SET"
    DROP = "DROP"


@dataclass(frozen=True, slots=True)
class AlterPublicationObjects:
    """ALTER PUBLICATION ... ADD | SET | DROP objects."""

    name: str
    change: ObjectsChange
    objects: tuple[PublicationObject, ...]


@dataclass(frozen=True, slots=True)
class AlterPublicationSet:
    """ALTER PUBLICATION ... SET ( options )."""

    name: str
    options: tuple[StatementOption, ...]


@dataclass(frozen=True, slots=True)
class AlterPublicationOwner:
    """ALTER PUBLICATION ... OWNER TO."""

    name: str
    owner: RoleName


@dataclass(frozen=True, slots=True)
class AlterPublicationRename:
    """ALTER PUBLICATION ... RENAME TO."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class DropPublication:
    """DROP PUBLICATION. CASCADE has no effect: nothing depends on a publication."""

    names: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CommentOnPublication:
    """COMMENT ON PUBLICATION ... IS; a text of None is NULL."""

    name: str
    text: str | None


PublicationStatement = (
    CreatePublication
    | AlterPublicationObjects
    | AlterPublicationSet
    | AlterPublicationOwner
    | AlterPublicationRename
    | DropPublication
    | CommentOnPublication
)
