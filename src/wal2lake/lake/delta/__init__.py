"""The table port on Delta Lake, and everything that a Delta table is made of.

Takes: locations, fields, finished Parquet files, cursors. Gives: versions that survive a power
cut. Owns: Delta's log and its actions, file names, statistics and deletion vectors, fsync.
Never: what the rows mean, or which ones to write.

Modules: ``tables`` (the port), ``jvm`` (Delta's own code), ``log`` (commits made here),
``durability``, ``fields``, ``fit``, ``stats``, ``datafile``, ``deletionvectors``, ``z85``,
``uniqueness``. All but ``tables``, ``jvm``, ``log``, ``fields``, ``fit`` and ``uniqueness`` load
without Spark.
"""
