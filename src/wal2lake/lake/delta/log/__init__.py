"""Reads and writes the files of Delta's log, without Delta.

Takes: a table's store, actions. Gives: versions as their checksum files describe them, and the
next version with its checksum; a commit's file is complete as soon as it has its name. Owns: the
text of a commit and of a checksum file. Never: decides what to commit, or resolves a conflict.

Modules: ``firstversion``, ``version``, ``commit``, ``checkpoints``, ``checksum``, ``clustering``,
``place``, ``background``.
"""
