"""Reads and writes Delta's log as files, without Delta.

Takes: a table's directory on this machine, actions. Gives: the newest version's state, and the
next version with its checksum; a commit's file is complete as soon as it has its name. Owns: the
text of a commit and of a checksum file. Never: decides what to commit, or resolves a conflict;
Delta writes every version that is not plain (``commit.is_ours_to_write``).

Modules: ``firstversion``, ``version``, ``earlier``, ``commit``, ``checkpoints``, ``checksum``,
``clustering``, ``known``, ``place``, ``background``.
"""
