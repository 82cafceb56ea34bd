"""SQL on the catalog's tables for schemas, tables, sequences and comments.

Called by ``store`` and its parts, with a connection; writes are part of the caller's transaction.
"""
