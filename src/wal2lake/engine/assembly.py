"""Puts the engine's parts together: the lake on its Spark session, the workers, the ports.

Comes in: settings, the catalog, a Spark session. Goes out: the options of a session; the parts, of
which nothing runs yet. Called by ``engine.__main__`` at the start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.apply.launcher import ApplyLauncher
from wal2lake.archive import staging_url
from wal2lake.catalog import Catalog
from wal2lake.engine.columndefaults import EvaluatedDefaults
from wal2lake.engine.followedtables import FollowedTables
from wal2lake.lake import JarSource, KeyIndex, locate_jars
from wal2lake.lake.catalogs import (
    CatalogOptions,
    ExternalCatalog,
    GlueCatalog,
    IcebergForm,
    RestIcebergCatalog,
    SqlIcebergCatalog,
    UnityCatalog,
)
from wal2lake.lake.compaction import Compactor
from wal2lake.lake.iceberg import IcebergMirror
from wal2lake.lake.spark import (
    Branches,
    BranchKeys,
    DeltaBatches,
    DeltaTables,
    HiveCatalog,
    Queries,
    SessionOptions,
    SparkExecutors,
    SparkExpressions,
    SparkSession,
    access_to,
    class_archive_path,
)
from wal2lake.lake.store import StoreOptions, is_object_store
from wal2lake.local.concurrency.sequencevalues import SequenceLocks
from wal2lake.local.node import EngineParts
from wal2lake.model import Oid
from wal2lake.observe import KeyedLocks, LockRank, get_logger
from wal2lake.observe.telemetry import Telemetry
from wal2lake.pg import limit_connecting
from wal2lake.settings import (
    CatalogSettings,
    IcebergCatalogSettings,
    Settings,
    fixed_at_start,
)
from wal2lake.tablesync.worker import TableSync

_NAMED_JARS: Final = 3
"""Jars of which a message has the names; a guess."""


def session_options(settings: Settings) -> SessionOptions:
    """Return the options of the engine's Spark session.

    Raises ConfigurationError for a setting that does not allow a session."""
    limit = limit_connecting(settings.subscription.connect_timeout_ms)
    # Executors read the ranges of a copy.
    for_executors = {f"spark.executorEnv.{k}": v for k, v in limit.items()}
    environment = dict(os.environ)
    if settings.spark.jars_dir:
        environment["WAL2LAKE_JARS_DIR"] = settings.spark.jars_dir
    source = JarSource.from_environment(environment)

    access = access_to(
        settings.warehouse,
        StoreOptions.from_environment(fixed_at_start(settings)),
        environment,
        settings.run_directory / "store",
        is_cluster=not settings.spark.is_local,
    )

    def announce(missing: Sequence[object]) -> None:
        names = ", ".join(map(str, missing[:_NAMED_JARS]))
        if len(missing) > _NAMED_JARS:
            names += f" and {len(missing) - _NAMED_JARS} more"
        get_logger().info(f"downloading {names} to {source.cache}, once")

    return SessionOptions(
        jars=locate_jars(source, environment, on_download=announce),
        added_jars=locate_jars(source, environment, access.jars, on_download=announce),
        local_dir=settings.run_directory / "spark",
        exchange_dir=None if settings.executors_store else settings.exchange_directory,
        warehouse=_own_tables(settings),
        master=settings.spark.master,
        driver_memory=settings.spark.driver_memory,
        class_archive=class_archive_path(),
        environment=access.environment,
        java_options=access.java_options,
        executor_java_options=access.executor_java_options,
        secrets=access.secrets,
        extra={**for_executors, **access.settings, **settings.spark.conf},
    )


def _own_tables(settings: Settings) -> str:
    """Return where Spark puts tables that have no location."""
    if is_object_store(settings.warehouse):
        return str(settings.run_directory / "spark" / "warehouse")
    return settings.warehouse


def catalog_client(spark: SparkSession, settings: CatalogSettings) -> ExternalCatalog:
    """Return the client of the catalog that the settings name.

    Raises FeatureNotSupportedError if a library is missing."""
    options = CatalogOptions.of(settings)
    if settings.type == "hive":
        return HiveCatalog(spark, options)
    if settings.type == "unity":
        return UnityCatalog(options)
    return GlueCatalog(options)


def iceberg_client(
    spark: SparkSession, settings: IcebergCatalogSettings
) -> ExternalCatalog:
    """Return the client of the Iceberg catalog that the settings name.

    Raises FeatureNotSupportedError if a library is missing."""
    options = CatalogOptions.of_iceberg(settings)
    if settings.type == "hive":
        return HiveCatalog(spark, options, IcebergForm())
    if settings.type == "glue":
        return GlueCatalog(options, IcebergForm())
    if settings.type == "sql":
        return SqlIcebergCatalog(options)
    return RestIcebergCatalog(options)


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts with what only the engine needs of them."""

    node: EngineParts
    batches: DeltaBatches
    tables: DeltaTables


def assemble(
    spark: SparkSession,
    options: SessionOptions,
    settings: Settings,
    catalog: Catalog,
    changed: Callable[[], None],
    telemetry: Telemetry,
) -> Assembly:
    """Make the parts. ``changed`` tells the supervisor that subscriptions have changed."""
    tables = DeltaTables(spark)
    locks: KeyedLocks[Oid] = KeyedLocks(LockRank.SUBSCRIPTION)
    index = KeyIndex(
        settings.run_directory / "keyindex", settings.apply.key_index_bytes
    )
    compactor = Compactor(tables)
    batches = DeltaBatches(
        spark,
        tables,
        settings.exchange_directory / "staging",
        cores=options.cores,
        upsert_bytes=settings.apply.upsert_bytes,
        spreads=not options.is_local,
        index=index,
        compactor=compactor,
        shared=staging_url(settings.executors_store),
    )
    alter = FollowedTables(lambda: node)
    queries = Queries(spark)
    sequences = SequenceLocks()
    defaults = EvaluatedDefaults(catalog, queries, sequences)
    apply = ApplyLauncher(
        catalog,
        settings,
        tables,
        batches,
        locks.of,
        alter,
        defaults,
        lambda: node.committed(),
        telemetry,
    )
    sync = TableSync(
        catalog,
        settings,
        tables,
        batches,
        SparkExecutors(spark),
        options.readers,
        alter,
        defaults,
        telemetry,
    )
    node = EngineParts(
        catalog=catalog,
        settings=settings,
        tables=tables,
        queries=queries,
        branches=Branches(spark, tables, queries),
        keys=BranchKeys(spark, tables, queries, index),
        compactor=compactor,
        mirrors=IcebergMirror(tables, lambda: int(time.time() * 1000)),
        apply=apply,
        sync=sync,
        locks=locks,
        changed=changed,
        expressions=SparkExpressions(spark),
        sequences=sequences,
        batch_reads=batches.reads,
        telemetry=telemetry,
    )
    tables.register_background(node.vacuums)
    return Assembly(node, batches, tables)
