"""wal2lake: PostgreSQL logical replication with a Spark lakehouse on either end.

Rooms, top to bottom in the order data travels; imports fall downward only (checked by
import-linter): cli | engine / door | commands / local /
sql / launch / tablesync / receive | apply | publish /
catalog | changelog | lake | pg / wire | pgtypes / observe / settings / model / errors.
"""

__version__ = "0.1.0"
