"""Workloads about apply: changes scattered over large tables, tables without a key, many small
commits, a steady load of pgbench.

Comes in: a stage. Goes out: results.
"""
