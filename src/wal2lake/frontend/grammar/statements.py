"""Statements as values: what the parser gives and the executor takes.

Comes in: the parser's findings. Goes out: frozen dataclasses, equal when they mean the same.
Places of tokens are kept for error positions and do not take part in comparisons. What
another part of the program executes (queries, session commands) is an ``Other``:
its kind, and its text untouched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from wal2lake.model import Deferral, Oid, PartitionKey

if TYPE_CHECKING:
    from wal2lake.frontend.grammar.constraints import CheckClause, GeneratedClause


class Kind(Enum):
    """What an ``Other`` statement is, behind its WITH; the value is PostgreSQL's name of it."""

    SELECT = "SELECT"
    VALUES = "VALUES"
    TABLE = "TABLE"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    MERGE = "MERGE"
    EXPLAIN = "EXPLAIN"
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
    """A command of PostgreSQL that no part of a node executes; see ``command``."""


@dataclass(frozen=True, slots=True)
class Other:
    """A statement that is passed on as text."""

    kind: Kind
    text: str
    command: str
    """The command's name for messages: ``CREATE VIEW``, ``SELECT``."""


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """``name`` or ``schema.name``, folded."""

    schema: str | None
    name: str
    position: int = field(default=0, compare=False)
    """1-based, in characters of the statement; 0 unknown."""


@dataclass(frozen=True, slots=True)
class RoleName:
    """A role by its name, or the one that a keyword stands for."""

    name: str
    """With ``keyword``: current_role, current_user or session_user."""
    keyword: bool = False


# ---- subscriptions --------------------------------------------------------------------


class ValueKind(Enum):
    """How an option's value was written, which is how it is printed."""

    WORD = "word"
    """A keyword or a bare name, the folded text."""
    STRING = "string"
    NUMBER = "number"
    """With its sign, as written."""
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class OptionValue:
    """The value of one option."""

    kind: ValueKind
    text: str


@dataclass(frozen=True, slots=True)
class Option:
    """One ``name [= value]`` of a WITH, SET or SKIP list."""

    name: str
    value: OptionValue | None
    position: int = field(default=0, compare=False)
    """1-based, in characters of the statement; 0 unknown."""


@dataclass(frozen=True, slots=True)
class CreateSubscription:
    """CREATE SUBSCRIPTION."""

    name: str
    conninfo: str
    publications: tuple[str, ...]
    options: tuple[Option, ...] = ()


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
    options: tuple[Option, ...] = ()


class PublicationChange(Enum):
    """What ALTER SUBSCRIPTION does with a list of publications."""

    SET = "SET"
    ADD = "ADD"
    DROP = "DROP"


@dataclass(frozen=True, slots=True)
class AlterSubscriptionPublication:
    """ALTER SUBSCRIPTION ... SET | ADD | DROP PUBLICATION."""

    name: str
    change: PublicationChange
    publications: tuple[str, ...]
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterSubscriptionSet:
    """ALTER SUBSCRIPTION ... SET ( options )."""

    name: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class AlterSubscriptionSkip:
    """ALTER SUBSCRIPTION ... SKIP ( options )."""

    name: str
    options: tuple[Option, ...]


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
    """None: NULL, which takes the comment away."""


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
    """None: the authorization role's name."""
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
    """What a column's values come from: ``serial``, or GENERATED ... AS IDENTITY."""

    identity: str = ""
    """a: ALWAYS, d: BY DEFAULT; none for serial."""
    start: int = 1
    increment: int = 1


@dataclass(frozen=True, slots=True)
class ColumnClause:
    """One column of CREATE TABLE."""

    name: str
    type_oid: Oid
    typmod: int = -1
    not_null: bool = False
    """Stated, or a column of the primary key."""
    default: str | None = None
    """The expression's text as written; None: no default, or DEFAULT NULL."""
    sequence: SequenceClause | None = None
    generated: GeneratedClause | None = None


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE."""

    table: QualifiedName
    columns: tuple[ColumnClause, ...]
    key: tuple[str, ...] = ()
    """Primary key columns in key order."""
    key_name: str | None = None
    """The constraint's name, if it was given one."""
    if_not_exists: bool = False
    partition_key: PartitionKey | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    """Storage parameters, names and values as Delta writes them."""
    partition_columns: tuple[str, ...] = ()
    """By which the files are to be divided, as the storage parameter of that name says."""
    clustering: tuple[str, ...] = ()
    """By which rows are to be kept together, as ``cluster_by`` says."""
    key_deferral: Deferral = Deferral.NO
    """When the key is judged."""
    checks: tuple[CheckClause, ...] = ()
    """Those of columns among them."""


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
class Truncate:
    """TRUNCATE."""

    tables: tuple[QualifiedName, ...]
    only: tuple[QualifiedName, ...] = ()
    """Those of them that are named with ONLY, which a partitioned table may not be."""
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
    | Truncate
    | Other
)
