"""The table port on Delta Lake, and everything that a Delta table is made of.

Takes: locations, fields, finished Parquet files, cursors. Gives: versions that survive a power
cut. Owns: Delta's log and its actions, file names, statistics and deletion vectors, fsync. Never:
interprets rows, or decides which rows to write.

Modules: ``tables`` (the port), ``creation`` (version 0), ``jvm`` (calls of Delta's own code),
``log`` (commits written without Delta), ``joining`` (checks before a commit), ``durability``,
``fields``, ``stats``, ``datafile``, ``deletionvectors``, ``z85``. All but ``tables``,
``creation``, ``jvm``, ``log``, ``fields`` and ``joining`` load without Spark.
"""
