"""Statements as values: the parser makes them and the executor takes them.

The values are frozen dataclasses. Two values are equal if their statements mean the same: the
positions of tokens, which are kept for error messages, are not compared. A statement that
another part of the program executes (a query, a session command) is an ``OtherStatement``, which
has the statement's kind and its unchanged text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from wal2lake.model import Deferral, Oid, PartitionKey

if TYPE_CHECKING:
    from wal2lake.sql.grammar.constraints import CheckClause, GeneratedClause


class CommandKind(Enum):
    """The command of an ``OtherStatement``, after WITH; the value is PostgreSQL's name for it."""

    SELECT = "SELECT"
    VALUES = "VALUES"
    TABLE = "TABLE"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    MERGE = "MERGE"
    BEGIN = "BEGIN"
    START_TRANSACTION = "START TRANSACTION"
    COMMIT = "COMMIT"
    """COMMIT or END."""
    ROLLBACK = "ROLLBACK"
    """ROLLBACK or ABORT, of the transaction or to a savepoint."""
    SAVEPOINT = "SAVEPOINT"
    RELEASE = "RELEASE"
    SET = "SET"
    SHOW = "SHOW"
    RESET = "RESET"
    DISCARD = "DISCARD"
    PREPARE = "PREPARE"
    """PREPARE of a statement, or PREPARE TRANSACTION."""
    EXECUTE = "EXECUTE"
    DEALLOCATE = "DEALLOCATE"
    DECLARE = "DECLARE CURSOR"
    FETCH = "FETCH"
    MOVE = "MOVE"
    CLOSE = "CLOSE CURSOR"
    COMMENT = "COMMENT"
    LISTEN = "LISTEN"
    NOTIFY = "NOTIFY"
    UNLISTEN = "UNLISTEN"
    COPY = "COPY"
    LOCK = "LOCK TABLE"
    UNSUPPORTED = "UNSUPPORTED"
    """A command of PostgreSQL that a node does not execute; ``command`` names it."""


@dataclass(frozen=True, slots=True)
class OtherStatement:
    """A statement that this grammar passes on as text."""

    kind: CommandKind
    text: str
    command: str
    """The command's name for messages: ``CREATE VIEW``, ``SELECT``."""


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """``name`` or ``schema.name``, folded."""

    schema: str | None
    name: str
    position: int = field(default=0, compare=False)
    """1-based, in characters of the statement; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class RoleName:
    """A role's name, or a keyword that stands for a role."""

    name: str
    """With ``keyword``: current_role, current_user or session_user."""
    keyword: bool = False


# ---- subscriptions --------------------------------------------------------------------


class ValueKind(Enum):
    """The form in which an option's value was written, and is printed."""

    WORD = "word"
    """A keyword or a bare name; the text is folded."""
    STRING = "string"
    NUMBER = "number"
    """With its sign, as written."""
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class OptionValue:
    """The value of one option, with the form in which it was written."""

    kind: ValueKind
    text: str


@dataclass(frozen=True, slots=True)
class StatementOption:
    """One ``name [= value]`` of a WITH, SET or SKIP list."""

    name: str
    value: OptionValue | None
    position: int = field(default=0, compare=False)
    """1-based, in characters of the statement; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class CreateSubscription:
    """CREATE SUBSCRIPTION."""

    name: str
    conninfo: str
    publications: tuple[str, ...]
    options: tuple[StatementOption, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterSubscriptionEnabled:
    """ALTER SUBSCRIPTION ... ENABLE | DISABLE."""

    name: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class AlterSubscriptionConnection:
    """ALTER SUBSCRIPTION ... CONNECTION."""

    name: str
    conninfo: str


@dataclass(frozen=True, slots=True)
class AlterSubscriptionRefresh:
    """ALTER SUBSCRIPTION ... REFRESH PUBLICATION."""

    name: str
    options: tuple[StatementOption, ...] = ()


class PublicationChange(Enum):
    """The ways in which ALTER SUBSCRIPTION changes the list of publications."""

    SET = "SET"
    ADD = "ADD"
    DROP = "DROP"


@dataclass(frozen=True, slots=True)
class AlterSubscriptionPublication:
    """ALTER SUBSCRIPTION ... SET | ADD | DROP PUBLICATION."""

    name: str
    change: PublicationChange
    publications: tuple[str, ...]
    options: tuple[StatementOption, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterSubscriptionSet:
    """ALTER SUBSCRIPTION ... SET ( options )."""

    name: str
    options: tuple[StatementOption, ...]


@dataclass(frozen=True, slots=True)
class AlterSubscriptionSkip:
    """ALTER SUBSCRIPTION ... SKIP ( options )."""

    name: str
    options: tuple[StatementOption, ...]


@dataclass(frozen=True, slots=True)
class AlterSubscriptionOwner:
    """ALTER SUBSCRIPTION ... OWNER TO."""

    name: str
    owner: RoleName


@dataclass(frozen=True, slots=True)
class AlterSubscriptionRename:
    """ALTER SUBSCRIPTION ... RENAME TO."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class CommentOnSubscription:
    """COMMENT ON SUBSCRIPTION ... IS."""

    name: str
    text: str | None
    """None: NULL, which removes the comment."""


@dataclass(frozen=True, slots=True)
class DropSubscription:
    """DROP SUBSCRIPTION."""

    name: str
    if_exists: bool = False
    cascade: bool = False


AlterSubscription = (
    AlterSubscriptionEnabled
    | AlterSubscriptionConnection
    | AlterSubscriptionRefresh
    | AlterSubscriptionPublication
    | AlterSubscriptionSet
    | AlterSubscriptionSkip
    | AlterSubscriptionOwner
    | AlterSubscriptionRename
)


# ---- schemas and tables -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """CREATE SCHEMA."""

    name: str | None
    """None: the schema has the name of the role in AUTHORIZATION."""
    if_not_exists: bool = False
    authorization: RoleName | None = None


@dataclass(frozen=True, slots=True)
class DropSchema:
    """DROP SCHEMA."""

    names: tuple[str, ...]
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class SequenceClause:
    """A sequence that a column's values come from: serial, or GENERATED ... AS IDENTITY."""

    identity: str = ""
    """a: ALWAYS; d: BY DEFAULT; empty: a serial column."""
    start: int = 1
    increment: int = 1


@dataclass(frozen=True, slots=True)
class ColumnClause:
    """One column of CREATE TABLE."""

    name: str
    type_oid: Oid
    typmod: int = -1
    not_null: bool = False
    """True if NOT NULL is stated, or if the column is in the primary key."""
    default: str | None = None
    """The text of the expression as written. None: no default, or DEFAULT NULL."""
    sequence: SequenceClause | None = None
    generated: GeneratedClause | None = None


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE."""

    table: QualifiedName
    columns: tuple[ColumnClause, ...]
    key: tuple[str, ...] = ()
    """The columns of the primary key, in key order."""
    key_name: str | None = None
    """The name of the primary key constraint, if the statement has one."""
    if_not_exists: bool = False
    partition_key: PartitionKey | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    """Storage parameters, with names and values as Delta writes them."""
    partition_columns: tuple[str, ...] = ()
    """The columns by which files are divided: storage parameter ``partition_columns``."""
    clustering: tuple[str, ...] = ()
    """The columns by which rows are kept together: storage parameter ``cluster_by``."""
    key_deferral: Deferral = Deferral.NO
    """Whether and when the check of the primary key is deferred."""
    checks: tuple[CheckClause, ...] = ()
    """All CHECK constraints, those of columns included."""


@dataclass(frozen=True, slots=True)
class CreatePartition:
    """CREATE TABLE ... PARTITION OF ... DEFAULT."""

    table: QualifiedName
    parent: QualifiedName
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTable:
    """DROP TABLE."""

    tables: tuple[QualifiedName, ...]
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """TRUNCATE."""

    tables: tuple[QualifiedName, ...]
    only: tuple[QualifiedName, ...] = ()
    """The tables that are named with ONLY. None of them may be a partitioned table."""
    restart_identity: bool = False
    cascade: bool = False


Statement = (
    CreateSubscription
    | AlterSubscription
    | DropSubscription
    | CommentOnSubscription
    | CreateSchema
    | DropSchema
    | CreateTable
    | CreatePartition
    | DropTable
    | TruncateTable
    | OtherStatement
)
