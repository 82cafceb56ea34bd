"""Follows rows through a batch: the lives of each key.

Modules: ``lives`` (the net change of keyed events), ``occurrences`` (keys for rows without one),
``deferral`` (keys that are checked at the end of a transaction).
"""
