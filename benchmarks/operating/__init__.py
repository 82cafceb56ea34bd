"""Workloads about what watches a node: scrapes, pages, alerts.

Comes in: a stage. Goes out: results. ``crowd`` is the visitors that the workloads have in common.
"""
