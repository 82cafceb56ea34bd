"""Replication commands of a session that was opened with ``replication=database``.

commands   each command: what it asks of the slots, and what is answered
"""
