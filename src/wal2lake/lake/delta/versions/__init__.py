"""Reads versions of a table from its log, and writes checkpoints.

Takes: a table's store. Gives: any version that the log has, with its files; the newest one as long
as it is that; checkpoints, and a log without the entries that they replace. Owns: what this process
knows of tables. Never: commits.

Modules: ``known``, ``earlier``, ``replay``, ``checkpointfiles``, ``checkpoints``, ``actionrows``,
``structstats``, ``cleanup``.
"""
