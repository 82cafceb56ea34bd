"""Workloads about tables: their first copy, many of them, a copy that is killed, an idle node.

Takes: a stage. Gives: results. Owns: the tables, publications and subscriptions that it makes,
which are gone after a workload. Never: measures two subscribers at the same time.
"""
