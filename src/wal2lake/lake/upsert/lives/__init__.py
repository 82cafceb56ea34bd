"""Follows rows through a batch: the lives of each key.

lives         the net change of keyed events
steps         effects of single events, for tables with a history (pure)
occurrences   keys for rows without one
deferral      keys that are checked at the end of a transaction
"""
