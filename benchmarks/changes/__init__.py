"""Workloads about the stream of changes: decoding, backlogs, latencies, large transactions.

Takes: a stage. Gives: results. Owns: the tables, publications and subscriptions that it makes,
which are gone after a workload. Never: measures two subscribers at the same time.
"""
