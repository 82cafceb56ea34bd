"""Value types that every room shares.

Takes: nothing. Gives: immutable values with PostgreSQL's names. Owns: no state, no I/O.
Never: imports another room (errors excepted).
"""

from wal2lake.model.acl import NAMES, PUBLIC, Acl, AclItem, ObjectKind
from wal2lake.model.coercion import Coercion, merged
from wal2lake.model.conflict import Conflict, ConflictType, Modified, Resolution
from wal2lake.model.constraint import CheckConstraint, Generated, Generation
from wal2lake.model.deletemode import DELETED_AT, DeleteMode
from wal2lake.model.domain import Domain
from wal2lake.model.fixed import BOOTSTRAP_SUPERUSER, DATABASE, DATABASE_OID
from wal2lake.model.holder import HOLDER, WarehouseHolder
from wal2lake.model.lsn import INVALID_LSN, INVALID_OID, Lsn, Oid, Xid
from wal2lake.model.relations.partition import PartitionKey, PartitionStrategy
from wal2lake.model.relations.relation import (
    SYSTEM_COLUMNS,
    Column,
    Deferral,
    Relation,
    ReplicaIdentity,
)
from wal2lake.model.relations.remoteschema import (
    EnumColumns,
    EnumLabel,
    KnownLabels,
    LabelRename,
    RemoteAttribute,
    RemoteSchema,
    SentSchema,
)
from wal2lake.model.syncstate import SyncState

__all__ = [
    "BOOTSTRAP_SUPERUSER",
    "DATABASE",
    "DATABASE_OID",
    "DELETED_AT",
    "HOLDER",
    "INVALID_LSN",
    "INVALID_OID",
    "NAMES",
    "PUBLIC",
    "SYSTEM_COLUMNS",
    "Acl",
    "AclItem",
    "CheckConstraint",
    "Coercion",
    "Column",
    "Conflict",
    "ConflictType",
    "Deferral",
    "DeleteMode",
    "Domain",
    "EnumColumns",
    "EnumLabel",
    "Generated",
    "Generation",
    "KnownLabels",
    "LabelRename",
    "Lsn",
    "Modified",
    "ObjectKind",
    "Oid",
    "PartitionKey",
    "PartitionStrategy",
    "Relation",
    "RemoteAttribute",
    "RemoteSchema",
    "ReplicaIdentity",
    "Resolution",
    "SentSchema",
    "SyncState",
    "WarehouseHolder",
    "Xid",
    "merged",
]
