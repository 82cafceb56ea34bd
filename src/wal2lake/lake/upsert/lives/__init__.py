"""Follows rows through a batch: the lives of each key.

lives         the net change of keyed events
steps         effects of single events, for tables with a history or deleted rows that stay (pure)
occurrences   keys for rows without one
deferral      keys that are checked at the end of a transaction
endings       rows that end and whose keys stay free (pure)
marks         rows that are marked as deleted
"""
