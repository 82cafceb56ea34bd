"""Marks deleted rows instead of removing them (``delete_mode = soft``).

Takes: the places of a batch's keys, the effects of its events. Gives: which of the stored rows are
marked, and the rows to write with their marks. Owns: the meaning of the column ``_deleted_at``.
Never: decides about conflicts; a marked row is no row to the events of a batch.

    kept        reads the rows that a batch ends
    truncated   evaluates a TRUNCATE, which marks all rows
    recopied    keeps deleted rows through a copy that replaces a table's rows
"""
