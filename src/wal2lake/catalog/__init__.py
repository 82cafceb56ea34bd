"""Durable facts of a node.

Takes: records. Gives: records, and one counter that grows with each change. Owns:
``catalog.sqlite`` in the node's directory. Never: holds fast-moving positions (``mapped`` does),
connects to a server, imports Spark or NumPy.

    store              ``Catalog``: one transaction per method
    parts/             the methods of ``Catalog``, by subject
    uncommitted        ``UncommittedCatalog``: the catalog as a transaction block sees it
    records            the rows as values
    database, schema   the SQLite file, its transactions and tables
    places             where tables are, relative to the warehouse
    objects/           SQL about schemas, tables, sequences, comments
    replication/       SQL about subscriptions, copies, origins
    published/         SQL about published states, local and prepared commits, conflicts
    remote/            SQL about publishers' schemas
    xids               numbers of transactions
    images             copies for another machine
    definitions/       ALTER TABLE's changes of columns, publications, and earlier definitions
                       of all of them
    access/            roles, and the privileges that follow from them
    mapped/            positions and commit times of a running subscription, in mapped files
    mirrored/          what the node's Iceberg catalog shows, in files
    registered         what is registered in a catalog of others, in a file
    overview           what monitoring needs, read at once by another process
"""

from wal2lake.catalog.access.authority import DATABASE_OWNER, Authority
from wal2lake.catalog.access.predefined import (
    FIRST_FREE_OID,
    PG_CREATE_SUBSCRIPTION,
    PG_READ_ALL_DATA,
    PG_READ_ALL_SETTINGS,
    PG_READ_ALL_STATS,
)
from wal2lake.catalog.access.roles import ROLE_FLAGS
from wal2lake.catalog.access.targets import TargetRights
from wal2lake.catalog.definitions.columnchanges import (
    AddCheck,
    AddColumn,
    ChangeType,
    ColumnChange,
    ColumnPlan,
    DropCheck,
    DropColumn,
    PlannedColumn,
    RenameColumn,
    SetDefault,
    SetGeneration,
    SetKey,
    SetNotNull,
    plan_changes,
)
from wal2lake.catalog.definitions.historic import HistoricDefinitions
from wal2lake.catalog.definitions.publications import (
    Publication,
    PublishedOperation,
    PublishedSchema,
    PublishedTable,
)
from wal2lake.catalog.images import (
    RevivedCatalog,
    RevivedSubscription,
    log_number,
    revive,
)
from wal2lake.catalog.mapped.progress import Progress, ProgressFile, read_progress
from wal2lake.catalog.mirrored import (
    MirrorMoment,
    MomentReader,
    MomentWriter,
    ShownTable,
    ShownTables,
)
from wal2lake.catalog.objects.historyrecords import (
    HISTORY_OF,
    HistoryFeed,
    PendingHistory,
    is_history,
)
from wal2lake.catalog.objects.ownedsequence import OwnedSequence
from wal2lake.catalog.objects.tableindex import IndexedColumn, TableIndex
from wal2lake.catalog.overview import (
    CatalogReader,
    KnownSlot,
    Overview,
    PreparedTransactionName,
    TableName,
)
from wal2lake.catalog.published.snapshot_vectors import TableVersion
from wal2lake.catalog.published.verifications import (
    ComparedTable,
    FoundDifference,
    NotedDifference,
    Verification,
)
from wal2lake.catalog.records import (
    ENUM_LABELS,
    LABELS_LEFT,
    MADE_SLOT,
    REMOTE_TYPES,
    SOURCE_STARTED,
    UNDECODED_TYPES,
    Altered,
    CoercionTotal,
    ColumnDef,
    Comment,
    CopyRange,
    LocalCommit,
    Namespace,
    NewSource,
    NotedConflict,
    PastState,
    PlannedSlot,
    PreparedCommit,
    PreparedState,
    Recopy,
    ReplicationOrigin,
    ReplicationSlot,
    Role,
    RoleMember,
    SnapshotVector,
    Subscription,
    SubscriptionError,
    SubscriptionRel,
    SubscriptionStats,
    SyncSnapshot,
    TableChange,
    TableDef,
    WorkerKind,
    local_writer,
)
from wal2lake.catalog.registered import (
    NOTHING_REGISTERED,
    EntryState,
    RegisteredTable,
    RegisteredTables,
    read_registered,
    write_registered,
)
from wal2lake.catalog.remote.schemas import (
    FollowedSchema,
    LookedAt,
    NotedSchemaChange,
    Parsed,
    ParsedSchemas,
    SchemaChange,
)
from wal2lake.catalog.replication.copies import HEALS
from wal2lake.catalog.schema import PUBLICATION_CATALOG, SUBSCRIPTION_CATALOG
from wal2lake.catalog.store import Catalog
from wal2lake.catalog.uncommitted import UncommittedCatalog

__all__ = [
    "DATABASE_OWNER",
    "ENUM_LABELS",
    "FIRST_FREE_OID",
    "HEALS",
    "HISTORY_OF",
    "LABELS_LEFT",
    "MADE_SLOT",
    "NOTHING_REGISTERED",
    "PG_CREATE_SUBSCRIPTION",
    "PG_READ_ALL_DATA",
    "PG_READ_ALL_SETTINGS",
    "PG_READ_ALL_STATS",
    "PUBLICATION_CATALOG",
    "REMOTE_TYPES",
    "ROLE_FLAGS",
    "SOURCE_STARTED",
    "SUBSCRIPTION_CATALOG",
    "UNDECODED_TYPES",
    "AddCheck",
    "AddColumn",
    "Altered",
    "Authority",
    "Catalog",
    "CatalogReader",
    "ChangeType",
    "CoercionTotal",
    "ColumnChange",
    "ColumnDef",
    "ColumnPlan",
    "Comment",
    "ComparedTable",
    "CopyRange",
    "DropCheck",
    "DropColumn",
    "EntryState",
    "FollowedSchema",
    "FoundDifference",
    "HistoricDefinitions",
    "HistoryFeed",
    "IndexedColumn",
    "KnownSlot",
    "LocalCommit",
    "LookedAt",
    "MirrorMoment",
    "MomentReader",
    "MomentWriter",
    "Namespace",
    "NewSource",
    "NotedConflict",
    "NotedDifference",
    "NotedSchemaChange",
    "Overview",
    "OwnedSequence",
    "Parsed",
    "ParsedSchemas",
    "PastState",
    "PendingHistory",
    "PlannedColumn",
    "PlannedSlot",
    "PreparedCommit",
    "PreparedState",
    "PreparedTransactionName",
    "Progress",
    "ProgressFile",
    "Publication",
    "PublishedOperation",
    "PublishedSchema",
    "PublishedTable",
    "Recopy",
    "RegisteredTable",
    "RegisteredTables",
    "RenameColumn",
    "ReplicationOrigin",
    "ReplicationSlot",
    "RevivedCatalog",
    "RevivedSubscription",
    "Role",
    "RoleMember",
    "SchemaChange",
    "SetDefault",
    "SetGeneration",
    "SetKey",
    "SetNotNull",
    "ShownTable",
    "ShownTables",
    "SnapshotVector",
    "Subscription",
    "SubscriptionError",
    "SubscriptionRel",
    "SubscriptionStats",
    "SyncSnapshot",
    "TableChange",
    "TableDef",
    "TableIndex",
    "TableName",
    "TableVersion",
    "TargetRights",
    "UncommittedCatalog",
    "Verification",
    "WorkerKind",
    "is_history",
    "local_writer",
    "log_number",
    "plan_changes",
    "read_progress",
    "read_registered",
    "revive",
    "write_registered",
]
