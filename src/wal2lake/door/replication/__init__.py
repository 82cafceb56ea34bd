"""Replication commands of a session that was opened with ``replication=database``.

commands   executes each command on the slots, and returns its answer
"""
