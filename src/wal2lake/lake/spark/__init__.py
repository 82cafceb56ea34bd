"""Everything that needs Spark: the session, queries, the table port, batches, branches.

Takes: settings, locations, SQL text, functions to run. Gives: a session whose driver is this
process; versions of tables; errors in PostgreSQL's words. Owns: the JVM's life and options, FAIR
pools. Never: decides what to write.

    session       the JVM and its settings; ``classarchive`` makes it start faster
    access        what it needs to read tables in an object store
    hive          tables in a Hive metastore
    errors        translates Spark's errors to PostgreSQL's, with ``texts``
    executors     runs functions in executors
    query         SQL text in, Arrow batches out; ``warmup`` runs one at a start
    plans         Spark's plan of a statement, as a tree
    delta         the table port
    expressions   users' expressions that resolve conflicts, Delta's demands on rows
    branch        tables that a transaction writes before it commits
    batches       the batch port, for which ``lake.upsert`` does the work
"""

from pyspark.sql import SparkSession

from wal2lake.lake.spark.access import access_to
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.branch.branches import Branch, Branches, place_of_branches
from wal2lake.lake.spark.branch.generated import RowRefused, generate, generated_rows
from wal2lake.lake.spark.branch.keys import BranchKeys, Key
from wal2lake.lake.spark.branch.rebase import Overtaken, rebase
from wal2lake.lake.spark.classarchive import class_archive_path
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.executors import SparkExecutors
from wal2lake.lake.spark.expressions import SparkExpressions
from wal2lake.lake.spark.hive import HiveCatalog
from wal2lake.lake.spark.plans import EnginePlan, ScannedFiles
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.spark.session import (
    SessionOptions,
    heap_bytes,
    session_alive,
    start_session,
    stop_session,
)
from wal2lake.lake.spark.warmup import warm_up

__all__ = [
    "Branch",
    "BranchKeys",
    "Branches",
    "DeltaBatches",
    "DeltaTables",
    "EnginePlan",
    "HiveCatalog",
    "Key",
    "Overtaken",
    "Queries",
    "RowRefused",
    "ScannedFiles",
    "SessionOptions",
    "SparkExecutors",
    "SparkExpressions",
    "SparkSession",
    "access_to",
    "class_archive_path",
    "generate",
    "generated_rows",
    "heap_bytes",
    "place_of_branches",
    "rebase",
    "relation",
    "session_alive",
    "start_session",
    "stop_session",
    "warm_up",
]
