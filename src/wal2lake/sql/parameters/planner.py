"""Lists the parameters of PostgreSQL's planner and memory: ``PLANNER_PARAMETERS``.

Clients set them when they connect or in connection strings (libpq's PGGEQO, ``options``). In
PostgreSQL they change the speed of a query and never its result. A node plans in another way, so it
keeps their values, shows them, and ignores them.

Source: src/backend/utils/misc/guc_tables.c, PostgreSQL 18 (pg_settings with context ``user`` in the
categories Query Tuning, Worker Processes and Memory).
"""

from __future__ import annotations

import sys
from typing import Final

from wal2lake.sql.parameters.definition import (
    BOOLEANS,
    ParameterDefinition,
    ParameterKind,
    Unit,
)

_SWITCHES: Final = (
    ("enable_async_append", "on", "Enables the planner's use of async append plans."),
    ("enable_bitmapscan", "on", "Enables the planner's use of bitmap-scan plans."),
    ("enable_distinct_reordering", "on", "Enables reordering of DISTINCT keys."),
    ("enable_gathermerge", "on", "Enables the planner's use of gather merge plans."),
    ("enable_group_by_reordering", "on", "Enables reordering of GROUP BY keys."),
    ("enable_hashagg", "on", "Enables the planner's use of hashed aggregation plans."),
    ("enable_hashjoin", "on", "Enables the planner's use of hash join plans."),
    (
        "enable_incremental_sort",
        "on",
        "Enables the planner's use of incremental sort steps.",
    ),
    (
        "enable_indexonlyscan",
        "on",
        "Enables the planner's use of index-only-scan plans.",
    ),
    ("enable_indexscan", "on", "Enables the planner's use of index-scan plans."),
    ("enable_material", "on", "Enables the planner's use of materialization."),
    ("enable_memoize", "on", "Enables the planner's use of memoization."),
    ("enable_mergejoin", "on", "Enables the planner's use of merge join plans."),
    ("enable_nestloop", "on", "Enables the planner's use of nested-loop join plans."),
    (
        "enable_parallel_append",
        "on",
        "Enables the planner's use of parallel append plans.",
    ),
    ("enable_parallel_hash", "on", "Enables the planner's use of parallel hash plans."),
    (
        "enable_partition_pruning",
        "on",
        "Enables plan-time and execution-time partition pruning.",
    ),
    (
        "enable_partitionwise_aggregate",
        "off",
        "Enables partitionwise aggregation and grouping.",
    ),
    ("enable_partitionwise_join", "off", "Enables partitionwise join."),
    (
        "enable_presorted_aggregate",
        "on",
        "Enables the planner's ability to produce plans that provide presorted "
        "input for ORDER BY / DISTINCT aggregate functions.",
    ),
    ("enable_self_join_elimination", "on", "Enables removal of unique self-joins."),
    ("enable_seqscan", "on", "Enables the planner's use of sequential-scan plans."),
    ("enable_sort", "on", "Enables the planner's use of explicit sort steps."),
    ("enable_tidscan", "on", "Enables the planner's use of TID scan plans."),
    ("geqo", "on", "Enables genetic query optimization."),
    (
        "parallel_leader_participation",
        "on",
        "Controls whether Gather and Gather Merge also run subplans.",
    ),
)
"""Boolean parameters: name, default, description."""

_NUMBERS: Final = (
    (
        "default_statistics_target",
        "100",
        Unit.NONE,
        1,
        10_000,
        "Sets the default statistics target.",
    ),
    (
        "effective_cache_size",
        "524288",
        Unit.BLOCKS,
        1,
        2_147_483_647,
        "Sets the planner's assumption about the total size of the data caches.",
    ),
    (
        "effective_io_concurrency",
        "16",
        Unit.NONE,
        0,
        1_000,
        "Number of simultaneous requests that can be handled efficiently by "
        "the disk subsystem.",
    ),
    (
        "from_collapse_limit",
        "8",
        Unit.NONE,
        1,
        2_147_483_647,
        "Sets the FROM-list size beyond which subqueries are not collapsed.",
    ),
    (
        "geqo_effort",
        "5",
        Unit.NONE,
        1,
        10,
        "GEQO: effort is used to set the default for other GEQO parameters.",
    ),
    (
        "geqo_generations",
        "0",
        Unit.NONE,
        0,
        2_147_483_647,
        "GEQO: number of iterations of the algorithm.",
    ),
    (
        "geqo_pool_size",
        "0",
        Unit.NONE,
        0,
        2_147_483_647,
        "GEQO: number of individuals in the population.",
    ),
    (
        "geqo_threshold",
        "12",
        Unit.NONE,
        2,
        2_147_483_647,
        "Sets the threshold of FROM items beyond which GEQO is used.",
    ),
    (
        "join_collapse_limit",
        "8",
        Unit.NONE,
        1,
        2_147_483_647,
        "Sets the FROM-list size beyond which JOIN constructs are not flattened.",
    ),
    (
        "maintenance_io_concurrency",
        "16",
        Unit.NONE,
        0,
        1_000,
        'A variant of "effective_io_concurrency" that is used for maintenance work.',
    ),
    (
        "maintenance_work_mem",
        "65536",
        Unit.KILOBYTES,
        64,
        2_147_483_647,
        "Sets the maximum memory to be used for maintenance operations.",
    ),
    (
        "max_parallel_maintenance_workers",
        "2",
        Unit.NONE,
        0,
        1_024,
        "Sets the maximum number of parallel processes per maintenance operation.",
    ),
    (
        "max_parallel_workers",
        "8",
        Unit.NONE,
        0,
        1_024,
        "Sets the maximum number of parallel workers that can be active at one time.",
    ),
    (
        "max_parallel_workers_per_gather",
        "2",
        Unit.NONE,
        0,
        1_024,
        "Sets the maximum number of parallel processes per executor node.",
    ),
    (
        "min_parallel_index_scan_size",
        "64",
        Unit.BLOCKS,
        0,
        715_827_882,
        "Sets the minimum amount of index data for a parallel scan.",
    ),
    (
        "min_parallel_table_scan_size",
        "1024",
        Unit.BLOCKS,
        0,
        715_827_882,
        "Sets the minimum amount of table data for a parallel scan.",
    ),
    (
        "temp_buffers",
        "1024",
        Unit.BLOCKS,
        100,
        1_073_741_823,
        "Sets the maximum number of temporary buffers used by each session.",
    ),
)
"""Integer parameters: name, default, unit, minimum, maximum, description."""

_COSTS: Final = (
    (
        "cpu_index_tuple_cost",
        "0.005",
        0.0,
        sys.float_info.max,
        "Sets the planner's estimate of the cost of processing each index "
        "entry during an index scan.",
    ),
    (
        "cpu_operator_cost",
        "0.0025",
        0.0,
        sys.float_info.max,
        "Sets the planner's estimate of the cost of processing each operator "
        "or function call.",
    ),
    (
        "cpu_tuple_cost",
        "0.01",
        0.0,
        sys.float_info.max,
        "Sets the planner's estimate of the cost of processing each tuple (row).",
    ),
    (
        "cursor_tuple_fraction",
        "0.1",
        0.0,
        1.0,
        "Sets the planner's estimate of the fraction of a cursor's rows that "
        "will be retrieved.",
    ),
    ("geqo_seed", "0", 0.0, 1.0, "GEQO: seed for random path selection."),
    (
        "geqo_selection_bias",
        "2",
        1.5,
        2.0,
        "GEQO: selective pressure within the population.",
    ),
    (
        "hash_mem_multiplier",
        "2",
        1.0,
        1000.0,
        'Multiple of "work_mem" to use for hash tables.',
    ),
    (
        "jit_above_cost",
        "100000",
        -1.0,
        sys.float_info.max,
        "Perform JIT compilation if query is more expensive.",
    ),
    (
        "jit_inline_above_cost",
        "500000",
        -1.0,
        sys.float_info.max,
        "Perform JIT inlining if query is more expensive.",
    ),
    (
        "jit_optimize_above_cost",
        "500000",
        -1.0,
        sys.float_info.max,
        "Optimize JIT-compiled functions if query is more expensive.",
    ),
    (
        "parallel_setup_cost",
        "1000",
        0.0,
        sys.float_info.max,
        "Sets the planner's estimate of the cost of starting up worker "
        "processes for parallel query.",
    ),
    (
        "parallel_tuple_cost",
        "0.1",
        0.0,
        sys.float_info.max,
        "Sets the planner's estimate of the cost of passing each tuple (row) "
        "from worker to leader backend.",
    ),
    (
        "random_page_cost",
        "4",
        0.0,
        sys.float_info.max,
        "Sets the planner's estimate of the cost of a nonsequentially fetched "
        "disk page.",
    ),
    (
        "recursive_worktable_factor",
        "10",
        0.001,
        1000000.0,
        "Sets the planner's estimate of the average size of a recursive "
        "query's working table.",
    ),
    (
        "seq_page_cost",
        "1",
        0.0,
        sys.float_info.max,
        "Sets the planner's estimate of the cost of a sequentially fetched disk page.",
    ),
)
"""Parameters with fractions: name, default, minimum, maximum, description."""

_CHOICES: Final = (
    (
        "constraint_exclusion",
        "partition",
        ("partition", "on", "off"),
        "Enables the planner to use constraints to optimize queries.",
    ),
    (
        "plan_cache_mode",
        "auto",
        ("auto", "force_generic_plan", "force_custom_plan"),
        "Controls the planner's selection of custom or generic plan.",
    ),
)
"""Enum parameters: name, default, choices, description."""

PLANNER_PARAMETERS: Final = (
    *(
        ParameterDefinition(name, ParameterKind.BOOL, default, description)
        for name, default, description in _SWITCHES
    ),
    *(
        ParameterDefinition(
            name,
            ParameterKind.INTEGER,
            default,
            description,
            unit=unit,
            minimum=minimum,
            maximum=maximum,
        )
        for name, default, unit, minimum, maximum, description in _NUMBERS
    ),
    *(
        ParameterDefinition(
            name,
            ParameterKind.REAL,
            default,
            description,
            least=least,
            greatest=greatest,
        )
        for name, default, least, greatest, description in _COSTS
    ),
    *(
        ParameterDefinition(
            name,
            ParameterKind.ENUM,
            default,
            description,
            choices=choices,
            synonyms=BOOLEANS if "on" in choices else (),
        )
        for name, default, choices, description in _CHOICES
    ),
)
