"""Delta's log as files: what is read and written here without asking Delta.

Takes: a table's directory on this machine, actions. Gives: the newest version's state, and the
next version, whole from its first moment, with its checksum. Owns: the text of a commit and of a
checksum file. Never: decides what to commit, or resolves a conflict; whatever is not plain
(``commit.is_ours_to_write``) is left to Delta.

Modules: ``firstversion``, ``version``, ``commit``, ``checkpoints``, ``checksum``, ``known``,
``place``.
"""
