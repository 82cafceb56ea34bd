"""SQL on the catalog's tables for subscriptions, their copies, and replication origins.

Called by ``store`` and its parts, with a connection; writes are part of the caller's transaction.
"""
