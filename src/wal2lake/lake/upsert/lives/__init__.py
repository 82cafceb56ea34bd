"""Follows rows through a batch: the lives of each key.

lives        keyed changes to the lives of their rows
occurrences  rows without a key, by their content
deferral     keys that are judged at the end of a transaction
"""
