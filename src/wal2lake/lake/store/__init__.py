"""Stores: where the files of tables are, a directory or a prefix of an object store.

Takes: a location (path or URL), keys below it, bytes. Gives: files that are complete as soon as
they have their name, lists of names, bytes. Owns: put-if-absent, durability of single files, the
clients of object stores, their time-outs, repeated attempts and errors. Never: knows what a file
means, or decides what to write.

    port      the port: operations of one table's files
    local     a directory: link(2), fsync
    objects   an object store by obstore: conditional requests, attempts, probe
    uploads   objects of any size, in parts
    reading   an object by ranges
    clients   a client for each bucket, by URL
    access    credentials that a command prints
    lease     the lease of a warehouse: one node at a time
    options   a client's options, from the environment
    answers   answers of an object store: repeat, or which error
    foreign   files where only pyarrow reaches, as HDFS
    errors    errors of files, with PostgreSQL's texts
    places    locations, and the store of each
"""

from wal2lake.lake.store.access.command import (
    CommandCredentials,
    CredentialsCommandFailed,
)
from wal2lake.lake.store.access.tokens import read_token
from wal2lake.lake.store.errors import (
    MissingFileError,
    NoPutIfAbsent,
    UnknownOutcome,
    storage_error,
)
from wal2lake.lake.store.lease import (
    LEASE_PROOF,
    HeldLease,
    LeaseLost,
    WarehouseInUse,
    lease_of,
)
from wal2lake.lake.store.local import LocalStore, PlainReader, sync_path
from wal2lake.lake.store.options import (
    StoreOptions,
    process_options,
    use_options,
)
from wal2lake.lake.store.places import (
    has_store,
    is_object_store,
    local_path,
    open_reader,
    open_writer,
    read_part,
    remove_file,
    store_at,
)
from wal2lake.lake.store.port import (
    PROBE,
    Entry,
    Range,
    Stamp,
    Store,
    StoreReader,
    StoreWriter,
    WrittenFile,
)

__all__ = [
    "LEASE_PROOF",
    "PROBE",
    "CommandCredentials",
    "CredentialsCommandFailed",
    "Entry",
    "HeldLease",
    "LeaseLost",
    "LocalStore",
    "MissingFileError",
    "NoPutIfAbsent",
    "PlainReader",
    "Range",
    "Stamp",
    "Store",
    "StoreOptions",
    "StoreReader",
    "StoreWriter",
    "UnknownOutcome",
    "WarehouseInUse",
    "WrittenFile",
    "has_store",
    "is_object_store",
    "lease_of",
    "local_path",
    "open_reader",
    "open_writer",
    "process_options",
    "read_part",
    "read_token",
    "remove_file",
    "storage_error",
    "store_at",
    "sync_path",
    "use_options",
]
