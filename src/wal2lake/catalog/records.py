"""The rows of the catalog as immutable values.

Names follow PostgreSQL's catalogs; a field that PostgreSQL has keeps its meaning. The
store gives and takes these; nobody else sees SQL rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final

from wal2lake.model import (
    INVALID_LSN,
    Acl,
    CheckConstraint,
    Coercion,
    Conflict,
    ConflictType,
    Deferral,
    Domain,
    Generated,
    Generation,
    Lsn,
    Oid,
    PartitionKey,
    ReplicaIdentity,
    SyncState,
)


@dataclass(frozen=True, slots=True)
class Role:
    """pg_authid. ``password`` is a SCRAM verifier (RFC 5803 form) or None."""

    oid: Oid
    name: str
    superuser: bool
    password: str | None
    inherit: bool = True
    """Default of its memberships' INHERIT option: whether it has the privileges of its roles."""
    createrole: bool = False
    createdb: bool = False
    login: bool = True
    replication: bool = False
    bypassrls: bool = False
    connlimit: int = -1
    """Sessions at a time; -1: any number."""
    valid_until: str | None = None
    """Until when its password holds: ISO 8601 with a time zone, infinity or -infinity."""


@dataclass(frozen=True, slots=True)
class RoleMember:
    """pg_auth_members: one grant of a role to another."""

    oid: Oid
    roleid: Oid
    """The role that is granted."""
    member: Oid
    grantor: Oid
    admin: bool = False
    """The member may grant it to others."""
    inherit: bool = True
    """The member has its privileges without SET ROLE."""
    set_role: bool = True
    """The member may SET ROLE to it."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """pg_namespace: a schema of lake tables."""

    oid: Oid
    name: str
    owner: Oid
    acl: Acl | None = None
    """None: the defaults."""


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """pg_attribute: one column of a lake table."""

    name: str
    type_oid: Oid
    """PostgreSQL's type. For a type the node does not know itself (an enum, say) the
    publisher's name is in ``type_name`` and this is 25 (text)."""
    typmod: int = -1
    type_name: str | None = None
    """The publisher's name of a user-defined type, for people; values are text."""
    not_null: bool = False
    default: str | None = None
    """The default expression in PostgreSQL's SQL, or None."""
    domain: Domain | None = None
    """The domain that the publisher's column is declared with."""
    sequence: Oid | None = None
    """The ``Sequence`` that its values come from, if none are given."""
    identity: str = ""
    """pg_attribute.attidentity: a (ALWAYS), d (BY DEFAULT), or none."""
    generated: Generation | None = None
    """GENERATED ALWAYS AS (...) STORED. Such a column has no default."""


@dataclass(frozen=True, slots=True)
class TableDef:
    """pg_class and pg_constraint: one lake table."""

    oid: Oid
    namespace: str
    name: str
    owner: Oid
    columns: tuple[ColumnDef, ...]
    key: tuple[str, ...]
    """Primary key columns in key order; empty: none."""
    location: str
    """URL or absolute path of the Delta table; see ``places``."""
    key_name: str | None = None
    """Name of the primary key constraint; None: PostgreSQL's default name."""
    partition_key: PartitionKey | None = None
    """Partition key of a partitioned table; its rows are those of its only partition, the default
    one."""
    partition_of: Oid | None = None
    """The partitioned table whose default partition it is, and whose location it has."""
    acl: Acl | None = None
    """None: the defaults."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Storage parameters of CREATE TABLE: the Delta table's properties."""
    replica_identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    """Old rows that the table's UPDATEs and DELETEs send."""
    key_deferral: Deferral = Deferral.NO
    checks: tuple[CheckConstraint, ...] = ()

    @property
    def qualified(self) -> str:
        """``schema.table``, unquoted, as messages print it."""
        return f"{self.namespace}.{self.name}"

    @property
    def storage(self) -> Oid:
        """Tables that are two names of one location have the same."""
        return self.oid if self.partition_of is None else self.partition_of

    def column(self, name: str) -> ColumnDef | None:
        """The column of that exact name."""
        return next((c for c in self.columns if c.name == name), None)

    @property
    def generated(self) -> Generated:
        """The table's generated columns."""
        return tuple(
            (c.name, c.generated) for c in self.columns if c.generated is not None
        )

    @property
    def index_name(self) -> str:
        """The name of its primary key, constraint and index: makeObjectName()."""
        cut = self.name.encode()[: 63 - len("_pkey")].decode(errors="ignore")
        return self.key_name or f"{cut}_pkey"

    @property
    def identity_columns(self) -> tuple[str, ...] | None:
        """Columns that tell which row is meant, which a deferrable key does not; None: all."""
        match self.replica_identity:
            case ReplicaIdentity.FULL:
                return None
            case ReplicaIdentity.NOTHING:
                return ()
        return () if self.key_deferral.deferrable else self.key


REMOTE_TYPES: Final = "remote_types"
"""Not an option: what decoders of binary values must know of the publisher's types."""

MADE_SLOT: Final = "made_slot"
"""Not an option: the slot that CREATE SUBSCRIPTION has made. Until a receiver has streamed, the
floor is its consistent point."""

SOURCE_STARTED: Final = "source_started"
"""Not an option: when the server was started that has let the slot be used last."""


class Recopy(Enum):
    """How far REFRESH PUBLICATION WITH (recopy = true) has come; workers wait for its end."""

    NO = 0
    """There is none under way."""
    BEGUN = 1
    """The workers are to end. Everything is still there: the DROP may be taken back."""
    GIVEN_UP = 2
    """The slot and the log are. It can only go on to a new slot."""


ENUM_LABELS: Final = "enum_labels"
"""Not an option: the labels of the publisher's enum types, for ``KnownLabels``."""

LABELS_LEFT: Final = "labels_left"
"""Not an option: by table, up to where renamed labels have been left as they are."""

UNDECODED_TYPES: Final = "undecoded_types"
"""Not an option: types that came in a binary stream and have no decoder."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """pg_subscription, and what the launcher needs to run it."""

    oid: Oid
    name: str
    owner: Oid
    enabled: bool
    conninfo: str
    slot_name: str | None
    """None: the subscription has no slot (slot_name = NONE)."""
    publications: tuple[str, ...]
    synchronous_commit: str = "off"
    create_tables: bool = True
    generation: int = 0
    """Grows with each change that a running worker must notice by restarting."""
    floor: Lsn = INVALID_LSN
    """Every table of the subscription is complete below this; the origin's LSN."""
    system_identifier: str | None = None
    """The publisher's, as first seen; another one later is an error."""
    timeline: int | None = None
    dropping: bool = False
    """A DROP has begun; repeating it finishes it, whatever became of the slot."""
    options: dict[str, str] = field(default_factory=dict)
    """Further options as accepted (binary, streaming, origin ...), and under
    ``REMOTE_TYPES``, ``UNDECODED_TYPES``, ``MADE_SLOT``, ``SOURCE_STARTED``,
    ``ENUM_LABELS`` and ``LABELS_LEFT`` what is no option."""
    skip_lsn: Lsn = INVALID_LSN
    """subskiplsn: the finish LSN of the transaction that ALTER ... SKIP leaves out; 0: none."""
    skipping: bool = False
    """Leaving it out has begun: after a crash it goes on, though a table is past it."""
    recopying: Recopy = Recopy.NO
    """All its tables are to be copied anew; ``unfinished`` ends what a crash interrupts."""

    @property
    def runs(self) -> bool:
        """True if the subscription's workers may run."""
        return self.enabled and self.recopying is Recopy.NO

    @property
    def origin(self) -> str:
        """any, or none: only changes that began at the publisher are wanted."""
        return self.options.get("origin", "any")

    @property
    def streaming(self) -> str:
        """off, on or parallel: whether large transactions may arrive before they commit."""
        return self.options.get("streaming", "off")

    @property
    def two_phase(self) -> str:
        """subtwophasestate: d disabled, p pending (until all tables are ready), e enabled."""
        return self.options.get("two_phase", "d")

    @property
    def binary(self) -> bool:
        """Values are asked for in binary format."""
        return self.options.get("binary") == "true"

    @property
    def disable_on_error(self) -> bool:
        """An error of its workers disables it, instead of being tried again."""
        return self.options.get("disable_on_error") == "true"

    @property
    def follows_schema(self) -> bool:
        """Changes of its tables' columns at the publisher are made here, too."""
        return self.options.get("schema_changes") == "follow"

    @property
    def password_required(self) -> bool:
        """The option, of which superusers are free."""
        return self.options.get("password_required", "true") == "true"

    @property
    def failover(self) -> bool:
        """The slot is one that standbys of the publisher may have."""
        return self.options.get("failover") == "true"

    @property
    def run_as_owner(self) -> bool:
        """True if the subscription owner's privileges apply, False if the tables' owners' do."""
        return self.options.get("run_as_owner") == "true"

    @property
    def type_mappings(self) -> str:
        """The option as it was written; empty: the defaults."""
        return self.options.get("type_mappings", "")

    @property
    def conflict_resolution(self) -> str:
        """The option's text; ``pgtypes.ConflictResolutions`` explains it."""
        return self.options.get("conflict_resolution", "")

    @property
    def value_policies(self) -> str:
        """The option as it was written; empty: every value is stored exactly."""
        return self.options.get("value_policies", "")

    @property
    def made_slot(self) -> str | None:
        """The slot that CREATE SUBSCRIPTION has made; None: it has made none."""
        return self.options.get(MADE_SLOT)

    @property
    def source_started(self) -> str | None:
        """When the server was started that streamed last; None: not known."""
        return self.options.get(SOURCE_STARTED) or None

    @property
    def remote_types(self) -> str | None:
        """JSON: the publisher's types that are not built in, as last asked for."""
        return self.options.get(REMOTE_TYPES)

    @property
    def undecoded_types(self) -> str | None:
        """JSON: what a binary stream was stopped by; None or empty: nothing."""
        return self.options.get(UNDECODED_TYPES)


class WorkerKind(Enum):
    """Workers of a subscription that can fail; each notes and clears only its own errors."""

    RECEIVER = "receiver"
    """Connects, receives, writes the log."""
    SNAPSHOT = "snapshot"
    """Holds the exported snapshot that copies stand on; a part of the receiver's process."""
    APPLY = "apply"
    """Applies the log's transactions."""
    COPY = "table synchronization"
    """Copies tables. Its errors are the tables' own, ``SubscriptionRel.error``."""
    DROP = "drop"
    """Finishes a DROP SUBSCRIPTION that was interrupted."""
    RECOPY = "re-copy"
    """Finishes a REFRESH PUBLICATION WITH (recopy = true) that was interrupted."""


@dataclass(frozen=True, slots=True)
class SubscriptionError:
    """Error that stops one worker of a subscription."""

    subid: Oid
    worker: WorkerKind
    error: str
    """Described: message, DETAIL, HINT and CONTEXT."""
    noted_at: str
    """ISO 8601, UTC: when this text was first noted."""
    sqlstate: str | None = None
    """None: an older version has noted it."""


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """pg_stat_subscription_stats: how often a subscription's workers have failed."""

    subid: Oid
    apply_errors: int
    sync_errors: int
    stats_reset: str | None
    """ISO 8601, UTC; None: never."""
    conflicts: Mapping[ConflictType, int]
    """Counts of conflicts by type."""


@dataclass(frozen=True, slots=True)
class Comment:
    """pg_description: what COMMENT ON has said of an object."""

    classid: Oid
    """OID of the catalog that has the object."""
    objid: Oid
    description: str


@dataclass(frozen=True, slots=True)
class PlannedSlot:
    """A slot that CREATE SUBSCRIPTION is about to make, until the subscription is recorded.

    One that is here while no command runs was left by a crash: nobody would ever read it,
    and it would hold the publisher's WAL.
    """

    slot_name: str
    conninfo: str
    subname: str
    lsn: Lsn
    """The publisher's position before: an older slot of that name is somebody else's."""
    must_use_password: bool = False
    """True if the command's own connection must use a password: see
    ``Catalog.must_use_password``."""


@dataclass(frozen=True, slots=True)
class NewSource:
    """Where a subscription that gave up its slot goes on."""

    start: Lsn
    """The consistent point of its new slot."""
    system_identifier: str
    timeline: int


@dataclass(frozen=True, slots=True)
class SubscriptionRel:
    """pg_subscription_rel, with the copy's own progress."""

    subid: Oid
    relid: Oid
    """Our table's OID."""
    remote_namespace: str
    remote_name: str
    state: SyncState
    lsn: Lsn | None
    """srsublsn: the consistent point S once copied, then the vector's that took the table
    in. In i and d not srsublsn: the S at which an attempt may have committed without a word
    to the catalog; the floor does not pass it. None: there is no such attempt."""
    epoch: int
    """Part of the table's cursor name; a re-copy starts the next one."""
    rows_copied: int = 0
    rows_expected: int | None = None
    """The publisher's estimate when the copy began (pg_class.reltuples)."""
    bytes_copied: int = 0
    error: str | None = None
    sqlstate: str | None = None
    """SQLSTATE of the error."""
    copy_plan: str | None = None
    """JSON: the snapshot and the page bounds of the running copy, which a resumed one keeps."""
    trusted: bool = True
    """True if all rows are the publisher's: an INSERT cannot meet a row that the publisher does not
    know."""
    replaces: bool = False
    """The copy of this epoch takes the place of all rows that the table has."""
    paused_at: str | None = None
    """ISO 8601, UTC: since when the table takes no part, in f at ``lsn``; None: it does."""
    rejoins: bool = False
    """In f it waits to come back: it is complete below ``lsn``, whatever its cursor says."""
    copied_from: Oid | None = None
    """The publisher's OID of the table that was copied; None: not known."""
    begins: Lsn | None = None
    """Position below which commits are not wanted (copy_data = false); None: the whole stream is
    wanted."""
    published_as: str | None = None
    """The publisher's marks of its publications at the copy; None: they cannot be watched."""

    @property
    def paused(self) -> bool:
        """Nothing is applied to it; the log has what it misses."""
        return self.paused_at is not None

    def cursor_name(self, node: int) -> str:
        """The application id of the table's cursor; ``node`` is the node's system identifier."""
        return f"wal2lake:{node}:{self.subid}:{self.epoch}"


@dataclass(frozen=True, slots=True)
class CopyRange:
    """One finished ctid range of a running copy: what the final commit will add."""

    subid: Oid
    relid: Oid
    epoch: int
    snapshot: str
    """The exported snapshot it was read under; another snapshot invalidates it."""
    number: int
    rows: int
    files: str
    """JSON: the list of Delta ``add`` actions."""
    coercions: tuple[Coercion, ...] = ()
    """Values of its rows that policies have changed."""


@dataclass(frozen=True, slots=True)
class SyncSnapshot:
    """An exported snapshot held open by a subscription's receiver."""

    subid: Oid
    snapshot: str
    """The name for SET TRANSACTION SNAPSHOT."""
    lsn: Lsn
    """Consistent point S of the snapshot."""
    holder: str
    """Identity of the process that keeps it; gone process, gone snapshot."""
    relids: tuple[int, ...]
    """Our OIDs of the tables that it covers: in the publication before it was published here."""

    @property
    def identity(self) -> str:
        """The name of ranges that are read under it; PostgreSQL uses snapshot names again."""
        return f"{self.snapshot}@{self.lsn}"


@dataclass(frozen=True, slots=True)
class CoercionTotal:
    """All published coercions of one column for one reason."""

    subid: Oid
    relid: Oid
    phase: str
    """copy or stream."""
    coercion: Coercion
    first_at: str
    """ISO 8601, UTC: when the first of them was published."""
    last_at: str


@dataclass(frozen=True, slots=True)
class NotedConflict:
    """A conflict that wal2lake.conflicts lists."""

    subid: Oid
    conflict: Conflict
    noted_at: str
    """ISO 8601, UTC: when it was published, or last stopped the subscription."""


@dataclass(frozen=True, slots=True)
class SnapshotVector:
    """One published consistent state of a subscription's tables."""

    subid: Oid
    lsn: Lsn
    committed_at: str
    """ISO 8601, UTC: when it was published."""
    versions: dict[int, int]
    """Table OID to Delta version."""
    apart: Mapping[int, Lsn] = field(default_factory=dict)
    """Positions of tables that are not at ``lsn`` but where they stood when they left the common
    snapshot: paused, catching up, or copied anew alone."""

    def elsewhere(self, relid: Oid) -> Lsn | None:
        """Where a table stands that is not at ``lsn``; None: it is there."""
        at = self.apart.get(int(relid))
        return None if at == self.lsn else at


@dataclass(frozen=True, slots=True)
class TableChange:
    """Changes that a local transaction commits to one table."""

    relid: Oid
    location: str
    table_id: str
    read_version: int
    """The version that the changes are made for."""
    cursor: int
    """Cursor of the application ``local_writer``: a table with this cursor has the changes."""
    actions: Sequence[Mapping[str, Any]]
    """Delta's ``remove`` and ``add``, as JSON objects."""
    truncates: bool = False
    """TRUNCATE is among its statements: what it adds came after that."""
    messages: Sequence[tuple[str, bytes]] = ()
    """Prefix and content of each that its commit carries."""
    origin: tuple[str, int, int | None] | None = None
    """The replication origin of its session, with the transaction's position and time there."""
    truncate_options: int = 0
    """If it ``truncates``: 1 CASCADE, 2 RESTART IDENTITY."""
    moved: Sequence[tuple[Sequence[str | None], Sequence[str | None]]] = ()
    """Keys that it has changed: before and now."""
    updated: int = 0
    """How many rows it has updated, if that is all that it has done to any."""
    statements: str = ""
    """Where its statements are written down one by one; none: nowhere."""
    xid: int = 0
    """The transaction's number; 0: it has none of its own."""


@dataclass(frozen=True, slots=True)
class Altered:
    """A table's definition after ALTER TABLE."""

    relid: Oid
    columns: tuple[ColumnDef, ...]
    key: tuple[str, ...]
    key_name: str | None
    renamed: tuple[tuple[str, str], ...] = ()
    """Columns that have another name now: before, and now."""
    key_deferral: Deferral = Deferral.NO
    checks: tuple[CheckConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalCommit:
    """A transaction that is being committed to several tables, or an ALTER TABLE of one."""

    number: int
    tables: tuple[TableChange, ...]
    altered: tuple[Altered, ...] = ()
    """Definitions that change with the table's commit: all names of one location."""


@dataclass(frozen=True, slots=True)
class ReplicationOrigin:
    """pg_replication_origin: one that was created by its function."""

    number: int
    name: str
    remote_lsn: Lsn
    """How far its transactions are replayed here."""


class PreparedState(StrEnum):
    """How far PREPARE TRANSACTION, or what ends it, has come."""

    PREPARING = "preparing"
    """The client has no answer: a crash undoes the PREPARE."""
    PREPARED = "prepared"
    COMMITTING = "committing"
    """It will commit, also behind a crash."""
    ROLLING_BACK = "rolling back"
    """It will not; the publisher's log may have to say so."""


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A prepared transaction of the front door: its files are in its tables, in no version."""

    number: int
    gid: str
    owner: Oid
    """OID of the role that has prepared the transaction."""
    prepared_at: int
    """Microseconds since 2000-01-01 UTC."""
    tables: tuple[TableChange, ...]
    messages: tuple[tuple[str, bytes], ...]
    """Prefix and content of each that it has emitted."""
    state: PreparedState = PreparedState.PREPARING
    xid: int | None = None
    """The transaction's number; None: an earlier version prepared it, and no slot needed it."""


def local_writer(node: int) -> str:
    """The application whose cursor a transaction of the front door carries into a table;
    ``node``: the node's system identifier."""
    return f"wal2lake:{node}:local"


@dataclass(frozen=True, slots=True)
class PastState:
    """The answer to a question about an earlier published state."""

    vector: SnapshotVector | None
    """None: it is not kept any more, or there never was one."""
    newest: tuple[Lsn, str] | None
    """Position and time of the newest state that there is."""
    oldest: tuple[Lsn, str] | None
    """Position and time of the oldest state that was looked at; without ``vector``, of the oldest
    one that is kept."""


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """pg_replication_slots: what a client of the publisher's log still needs."""

    name: str
    plugin: str
    restart_lsn: Lsn
    """The log is kept from here on."""
    confirmed_lsn: Lsn
    """The client has everything that committed below."""
    temporary: int = 0
    """The session whose it is; 0: it stays."""
    two_phase: bool = False
    failover: bool = False
    two_phase_at: Lsn | None = None
    invalidation: str | None = None
    """Why it can be used no more, in PostgreSQL's words."""
