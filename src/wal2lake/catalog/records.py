"""The rows of the catalog, as immutable values, which the store takes and returns.

Names follow PostgreSQL's catalogs, and a field that PostgreSQL has keeps its meaning.
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
    """Default of the INHERIT option of its memberships: whether it has the roles' privileges."""
    createrole: bool = False
    createdb: bool = False
    login: bool = True
    replication: bool = False
    bypassrls: bool = False
    connlimit: int = -1
    """Maximum number of concurrent sessions; -1 for no limit."""
    valid_until: str | None = None
    """Time until which the password is valid: ISO 8601 with a time zone, infinity or -infinity."""


@dataclass(frozen=True, slots=True)
class RoleMember:
    """pg_auth_members: one grant of a role to another."""

    oid: Oid
    roleid: Oid
    """The granted role."""
    member: Oid
    grantor: Oid
    admin: bool = False
    """Whether the member may grant the role to others."""
    inherit: bool = True
    """Whether the member has the role's privileges without SET ROLE."""
    set_role: bool = True
    """Whether the member may SET ROLE to the role."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """pg_namespace: a schema of lake tables."""

    oid: Oid
    name: str
    owner: Oid
    acl: Acl | None = None
    """None for the default privileges."""


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """pg_attribute: one column of a lake table."""

    name: str
    type_oid: Oid
    """PostgreSQL's type. For a type that is not built in (for instance an enum) this is 25 (text),
    and ``type_name`` has the publisher's name."""
    typmod: int = -1
    type_name: str | None = None
    """The publisher's name of a user-defined type, for display. Values are text."""
    not_null: bool = False
    default: str | None = None
    """Default expression in PostgreSQL's SQL, or None."""
    domain: Domain | None = None
    """Domain of the publisher's column, if any."""
    sequence: Oid | None = None
    """Sequence that supplies values if none are given."""
    identity: str = ""
    """pg_attribute.attidentity: a (ALWAYS), d (BY DEFAULT), or empty."""
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
    """Primary key columns in key order; empty if there is no key."""
    location: str
    """URL or absolute path of the Delta table (``places``)."""
    key_name: str | None = None
    """Name of the primary key constraint. None for PostgreSQL's default name."""
    partition_key: PartitionKey | None = None
    """Partition key of a partitioned table. Its rows are those of its only partition, the default
    partition."""
    partition_of: Oid | None = None
    """Partitioned table whose default partition this is. Both have the same location."""
    acl: Acl | None = None
    """None for the default privileges."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Storage parameters of CREATE TABLE, which are the Delta table's properties."""
    replica_identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    """Old rows that UPDATEs and DELETEs of the table send."""
    key_deferral: Deferral = Deferral.NO
    checks: tuple[CheckConstraint, ...] = ()

    @property
    def qualified(self) -> str:
        """``schema.table``, unquoted, as messages print it."""
        return f"{self.namespace}.{self.name}"

    @property
    def storage(self) -> Oid:
        """OID of the location's main table. Tables with the same location have the same value."""
        return self.oid if self.partition_of is None else self.partition_of

    def column(self, name: str) -> ColumnDef | None:
        """Return the column with exactly this name."""
        return next((c for c in self.columns if c.name == name), None)

    @property
    def generated(self) -> Generated:
        """The table's generated columns."""
        return tuple(
            (c.name, c.generated) for c in self.columns if c.generated is not None
        )

    @property
    def index_name(self) -> str:
        """Name of the primary key's constraint and index, as by makeObjectName()."""
        cut = self.name.encode()[: 63 - len("_pkey")].decode(errors="ignore")
        return self.key_name or f"{cut}_pkey"

    @property
    def identity_columns(self) -> tuple[str, ...] | None:
        """Columns of the replica identity; None for all columns. A deferrable key is no
        identity."""
        match self.replica_identity:
            case ReplicaIdentity.FULL:
                return None
            case ReplicaIdentity.NOTHING:
                return ()
        return () if self.key_deferral.deferrable else self.key


REMOTE_TYPES: Final = "remote_types"
"""Not an option: the publisher's types, for decoders of binary values."""

MADE_SLOT: Final = "made_slot"
"""Not an option: the slot that CREATE SUBSCRIPTION has created. Until a receiver has streamed, the
floor is the slot's consistent point."""

SOURCE_STARTED: Final = "source_started"
"""Not an option: start time of the server that has streamed last."""


class Recopy(Enum):
    """Progress of REFRESH PUBLICATION WITH (recopy = true). Workers wait for its end."""

    NO = 0
    """None is running."""
    BEGUN = 1
    """The workers must end. Slot and log still exist, so the command can be cancelled."""
    GIVEN_UP = 2
    """The slot and the log were given up. The command can only continue with a new slot."""


ENUM_LABELS: Final = "enum_labels"
"""Not an option: labels of the publisher's enum types, for ``KnownLabels``."""

LABELS_LEFT: Final = "labels_left"
"""Not an option: by table, the LSN up to which renamed labels are not followed."""

UNDECODED_TYPES: Final = "undecoded_types"
"""Not an option: types without a decoder that a binary stream has brought."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """pg_subscription, with the facts that the launcher needs."""

    oid: Oid
    name: str
    owner: Oid
    enabled: bool
    conninfo: str
    slot_name: str | None
    """None if the subscription has no slot (slot_name = NONE)."""
    publications: tuple[str, ...]
    synchronous_commit: str = "off"
    create_tables: bool = True
    generation: int = 0
    """Number that grows with each change for which running workers must restart."""
    floor: Lsn = INVALID_LSN
    """LSN below which every table of the subscription is complete; the origin's LSN."""
    system_identifier: str | None = None
    """The publisher's system identifier, as first seen. A different one later is an error."""
    timeline: int | None = None
    dropping: bool = False
    """Whether a DROP has begun. Repeating the DROP finishes it, even if the slot is gone."""
    options: dict[str, str] = field(default_factory=dict)
    """Further options as accepted (binary, streaming, origin ...), and other facts under
    ``REMOTE_TYPES``, ``UNDECODED_TYPES``, ``MADE_SLOT``, ``SOURCE_STARTED``, ``ENUM_LABELS`` and
    ``LABELS_LEFT``."""
    skip_lsn: Lsn = INVALID_LSN
    """subskiplsn: finish LSN of the transaction that ALTER ... SKIP leaves out; 0 for none."""
    skipping: bool = False
    """Whether the skip has begun. After a crash it goes on, even if a table is beyond the
    transaction."""
    recopying: Recopy = Recopy.NO
    """Progress of copying all tables anew. ``unfinished`` completes it after a crash."""

    @property
    def runs(self) -> bool:
        """Whether the subscription's workers may run."""
        return self.enabled and self.recopying is Recopy.NO

    @property
    def origin(self) -> str:
        """any, or none for changes without an origin at the publisher only."""
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
        """Whether values are requested in binary format."""
        return self.options.get("binary") == "true"

    @property
    def disable_on_error(self) -> bool:
        """Whether an error of a worker disables the subscription, instead of a retry."""
        return self.options.get("disable_on_error") == "true"

    @property
    def follows_schema(self) -> bool:
        """Whether changes of columns at the publisher are made here, too."""
        return self.options.get("schema_changes") == "follow"

    @property
    def password_required(self) -> bool:
        """The option, which does not apply to superusers."""
        return self.options.get("password_required", "true") == "true"

    @property
    def failover(self) -> bool:
        """Whether standbys of the publisher synchronize the slot."""
        return self.options.get("failover") == "true"

    @property
    def auto_refresh(self) -> bool:
        """Whether tables join and leave with the publications, without a command."""
        return self.options.get("auto_refresh") == "true"

    @property
    def keeps_deleted(self) -> bool:
        """Whether a row that the publisher deletes stays, and is marked."""
        return self.options.get("delete_mode") == "soft"

    @property
    def run_as_owner(self) -> bool:
        """Whether the subscription owner's privileges apply, not those of the tables' owners."""
        return self.options.get("run_as_owner") == "true"

    @property
    def type_mappings(self) -> str:
        """Text of the option; empty for the defaults."""
        return self.options.get("type_mappings", "")

    @property
    def conflict_resolution(self) -> str:
        """Text of the option, parsed by ``pgtypes.ConflictResolutions``."""
        return self.options.get("conflict_resolution", "")

    @property
    def history(self) -> str:
        """Schema of the history tables; empty if none are kept."""
        return self.options.get("history", "")

    @property
    def value_policies(self) -> str:
        """Text of the option. If empty, every value is stored exactly."""
        return self.options.get("value_policies", "")

    @property
    def made_slot(self) -> str | None:
        """Slot that CREATE SUBSCRIPTION has created; None if it has created none."""
        return self.options.get(MADE_SLOT)

    @property
    def source_started(self) -> str | None:
        """Start time of the server that streamed last; None if not known."""
        return self.options.get(SOURCE_STARTED) or None

    @property
    def remote_types(self) -> str | None:
        """JSON: the publisher's types that are not built in, as last read."""
        return self.options.get(REMOTE_TYPES)

    @property
    def undecoded_types(self) -> str | None:
        """JSON: types that stopped a binary stream; None or empty if there are none."""
        return self.options.get(UNDECODED_TYPES)


class WorkerKind(Enum):
    """Workers of a subscription that can fail. Each records and clears only its own errors."""

    RECEIVER = "receiver"
    """Connects, receives, writes the log."""
    SNAPSHOT = "snapshot"
    """Holds the exported snapshot of copies; a part of the receiver's process."""
    APPLY = "apply"
    """Applies the log's transactions."""
    COPY = "table synchronization"
    """Copies tables. Its errors are recorded per table, in ``SubscriptionRel.error``."""
    DROP = "drop"
    """Finishes a DROP SUBSCRIPTION that was interrupted."""
    RECOPY = "re-copy"
    """Finishes a REFRESH PUBLICATION WITH (recopy = true) that was interrupted."""
    ARCHIVER = "archiver"
    """Puts the log into its store; a part of the receiver's process."""
    AUTO_REFRESH = "auto refresh"
    """Looks for tables that join or leave the publications."""


@dataclass(frozen=True, slots=True)
class SubscriptionError:
    """Error that stops one worker of a subscription."""

    subid: Oid
    worker: WorkerKind
    error: str
    """Text of the error: message, DETAIL, HINT and CONTEXT."""
    noted_at: str
    """Time when this text was first recorded: ISO 8601, UTC."""
    sqlstate: str | None = None
    """None if an older version has recorded the error."""


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """pg_stat_subscription_stats: counts of errors and conflicts."""

    subid: Oid
    apply_errors: int
    sync_errors: int
    stats_reset: str | None
    """Time of the last reset, ISO 8601, UTC; None if never reset."""
    conflicts: Mapping[ConflictType, int]
    """Counts of conflicts by type."""


@dataclass(frozen=True, slots=True)
class Comment:
    """pg_description: the comment of an object."""

    classid: Oid
    """OID of the catalog that contains the object."""
    objid: Oid
    description: str


@dataclass(frozen=True, slots=True)
class PlannedSlot:
    """A slot that CREATE SUBSCRIPTION is about to create, until the subscription is recorded.

    If there is an entry while no command runs, a crash has left the slot: it would hold the
    publisher's WAL for ever.
    """

    slot_name: str
    conninfo: str
    subname: str
    lsn: Lsn
    """The publisher's position before the creation. An older slot with the name belongs to another
    user."""
    must_use_password: bool = False
    """Whether the command's connection must use a password (``Catalog.must_use_password``)."""


@dataclass(frozen=True, slots=True)
class NewSource:
    """Source with which a subscription continues after it gave up its slot."""

    start: Lsn
    """Consistent point of the new slot."""
    system_identifier: str
    timeline: int


@dataclass(frozen=True, slots=True)
class SubscriptionRel:
    """pg_subscription_rel, with the progress of the copy."""

    subid: Oid
    relid: Oid
    """OID of the local table."""
    remote_namespace: str
    remote_name: str
    state: SyncState
    lsn: Lsn | None
    """srsublsn: the consistent point S of the copy, later the LSN of the vector with which the
    table joined. In states i and d it is not srsublsn, but the S at which an attempt may have
    committed without a record in the catalog, and which the floor does not pass; None if there is
    no such attempt."""
    epoch: int
    """Part of the table's cursor name. A new copy has a new epoch."""
    rows_copied: int = 0
    rows_expected: int | None = None
    """The publisher's estimate at the beginning of the copy (pg_class.reltuples)."""
    bytes_copied: int = 0
    error: str | None = None
    sqlstate: str | None = None
    """SQLSTATE of the error."""
    copy_plan: str | None = None
    """JSON: snapshot and page bounds of the running copy, which a resumed copy keeps."""
    trusted: bool = True
    """Whether all rows are the publisher's, so that an INSERT cannot meet a row that the publisher
    does not have."""
    replaces: bool = False
    """Whether the copy of this epoch replaces all rows of the table."""
    heals: bool = False
    """Whether the copy writes differing rows only. If it cannot, it replaces all rows."""
    paused_at: str | None = None
    """Time of the pause, ISO 8601, UTC. A paused table takes no part, in state f at ``lsn``. None
    if it is not paused."""
    rejoins: bool = False
    """Whether the table, in state f, waits to rejoin: it is complete below ``lsn``."""
    copied_from: Oid | None = None
    """The publisher's OID of the copied table; None if not known."""
    begins: Lsn | None = None
    """Position below which commits are skipped (copy_data = false); None: none is skipped."""
    published_as: str | None = None
    """The publisher's marks of the table's publications at the copy; None if they cannot be
    watched."""
    seen_as: str | None = None
    """How the table was published at the last look of ``auto_refresh``, as
    ``commands.subscription.auto`` writes it; None before the first look."""

    @property
    def paused(self) -> bool:
        """Whether the table is paused. The log keeps the changes that it misses."""
        return self.paused_at is not None

    def cursor_name(self, node: int) -> str:
        """Return the application ID of the table's cursor. ``node``: the node's system
        identifier."""
        return f"wal2lake:{node}:{self.subid}:{self.epoch}"


@dataclass(frozen=True, slots=True)
class CopyRange:
    """One finished ctid range of a running copy, which the final commit will add."""

    subid: Oid
    relid: Oid
    epoch: int
    snapshot: str
    """Snapshot of the range. Another snapshot invalidates the range."""
    number: int
    rows: int
    files: str
    """JSON: list of Delta ``add`` actions."""
    coercions: tuple[Coercion, ...] = ()
    """Values that policies have changed."""


@dataclass(frozen=True, slots=True)
class SyncSnapshot:
    """An exported snapshot held open by a subscription's receiver."""

    subid: Oid
    snapshot: str
    """Name for SET TRANSACTION SNAPSHOT."""
    lsn: Lsn
    """Consistent point S of the snapshot."""
    holder: str
    """Process that holds the snapshot. The snapshot ends with the process."""
    relids: tuple[int, ...]
    """Local OIDs of the covered tables, which were in the publication before the snapshot was
    published here."""

    @property
    def identity(self) -> str:
        """Identity of the snapshot, recorded with its ranges. PostgreSQL reuses snapshot names."""
        return f"{self.snapshot}@{self.lsn}"


@dataclass(frozen=True, slots=True)
class CoercionTotal:
    """All published coercions of one column for one reason."""

    subid: Oid
    relid: Oid
    phase: str
    """Phase: copy or stream."""
    coercion: Coercion
    first_at: str
    """Time when the first of them was published: ISO 8601, UTC."""
    last_at: str


@dataclass(frozen=True, slots=True)
class NotedConflict:
    """A conflict that wal2lake.conflicts lists."""

    subid: Oid
    conflict: Conflict
    noted_at: str
    """Time when the conflict was published, or last stopped the subscription: ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class SnapshotVector:
    """One published state of a subscription's tables, at positions ``since`` (None: ``lsn``) on."""

    subid: Oid
    lsn: Lsn
    committed_at: str
    """Time when the state was published: ISO 8601, UTC."""
    versions: dict[int, int]
    """Delta versions by table OID."""
    apart: Mapping[int, Lsn] = field(default_factory=dict)
    """Positions of tables that are paused, catching up or copied alone, so are not at ``lsn``."""
    since: Lsn | None = None

    def elsewhere(self, relid: Oid) -> Lsn | None:
        """Return the position of a table that is not at ``lsn``; None if it is at ``lsn``."""
        position = self.apart.get(int(relid))
        return None if position == self.lsn else position


@dataclass(frozen=True, slots=True)
class TableChange:
    """Changes that a local transaction commits to one table."""

    relid: Oid
    location: str
    table_id: str
    read_version: int
    """Version that the changes are based on."""
    cursor: int
    """Cursor of the application ``local_writer``. A table with this cursor has the changes."""
    actions: Sequence[Mapping[str, Any]]
    """Delta's ``remove`` and ``add`` actions, as JSON objects."""
    truncates: bool = False
    """Whether the statements include TRUNCATE. Added rows came after it."""
    messages: Sequence[tuple[str, bytes]] = ()
    """Prefix and content of each message that the commit carries."""
    origin: tuple[str, int, int | None] | None = None
    """Replication origin of the session, with the transaction's position and time there."""
    truncate_options: int = 0
    """Options of TRUNCATE: 1 CASCADE, 2 RESTART IDENTITY."""
    moved: Sequence[tuple[Sequence[str | None], Sequence[str | None]]] = ()
    """Changed keys: before and after."""
    updated: int = 0
    """Number of updated rows, if rows were only updated."""
    statements: str = ""
    """Name of the file with its single statements; empty if there is none."""
    xid: int = 0
    """The transaction's number; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class Altered:
    """A table's definition after ALTER TABLE."""

    relid: Oid
    columns: tuple[ColumnDef, ...]
    key: tuple[str, ...]
    key_name: str | None
    renamed: tuple[tuple[str, str], ...] = ()
    """Renamed columns: names before and after."""
    key_deferral: Deferral = Deferral.NO
    checks: tuple[CheckConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalCommit:
    """A running commit of a transaction to several tables, or of an ALTER TABLE."""

    number: int
    tables: tuple[TableChange, ...]
    altered: tuple[Altered, ...] = ()
    """Definitions that change with the table's commit, under all names of its location."""


@dataclass(frozen=True, slots=True)
class ReplicationOrigin:
    """pg_replication_origin: an origin created by pg_replication_origin_create."""

    number: int
    name: str
    remote_lsn: Lsn
    """Position up to which the origin's transactions are replayed here."""


class PreparedState(StrEnum):
    """Progress of PREPARE TRANSACTION, or of the command that ends it."""

    PREPARING = "preparing"
    """The client has no reply yet. A crash undoes the PREPARE."""
    PREPARED = "prepared"
    COMMITTING = "committing"
    """The transaction will commit, even after a crash."""
    ROLLING_BACK = "rolling back"
    """The transaction will roll back. The publisher's log may need a record of that."""


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A prepared transaction of a session. Its files are in the tables' directories, but in no
    version."""

    number: int
    gid: str
    owner: Oid
    """OID of the role that prepared the transaction."""
    prepared_at: int
    """Microseconds since 2000-01-01 UTC."""
    tables: tuple[TableChange, ...]
    messages: tuple[tuple[str, bytes], ...]
    """Prefix and content of each emitted message."""
    state: PreparedState = PreparedState.PREPARING
    xid: int | None = None
    """The transaction's number. None if an earlier version prepared it while no slot needed it."""


def local_writer(node: int) -> str:
    """Return the application ID of local transactions' cursors in tables. ``node``: the node's
    system identifier."""
    return f"wal2lake:{node}:local"


@dataclass(frozen=True, slots=True)
class PastState:
    """Result of a search for an earlier published state."""

    vector: SnapshotVector | None
    """None if the state is not kept any more, or never existed."""
    newest: tuple[Lsn, str] | None
    """Position and time of the newest state."""
    oldest: tuple[Lsn, str] | None
    """Position and time of the oldest state that was searched; without ``vector``, of the oldest
    kept state."""


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """pg_replication_slots: a slot of the publisher's log."""

    name: str
    plugin: str
    restart_lsn: Lsn
    """Position from which the log is kept."""
    confirmed_lsn: Lsn
    """Position below which the client has all transactions."""
    temporary: int = 0
    """Session that owns a temporary slot; 0 for a permanent slot."""
    two_phase: bool = False
    failover: bool = False
    two_phase_at: Lsn | None = None
    invalidation: str | None = None
    """Reason why the slot was invalidated, in PostgreSQL's words."""
