"""The table port on Delta Lake, and everything that a Delta table is made of.

Takes: locations, fields, finished Parquet files, cursors. Gives: versions that survive a power
cut. Owns: Delta's log and its actions, file names, statistics and deletion vectors, fsync.
Never: what the rows mean, or which ones to write.

Modules: ``tables`` (the port), ``creation`` (its version 0), ``jvm`` (Delta's own code), ``log``
(commits made here), ``joining`` (checks before a commit), ``durability``, ``fields``, ``stats``,
``datafile``, ``deletionvectors``, ``z85``. All but ``tables``, ``creation``, ``jvm``, ``log``,
``fields`` and ``joining`` load without Spark.
"""
