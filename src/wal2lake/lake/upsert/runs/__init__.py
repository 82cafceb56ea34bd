"""Applies a batch of any size in runs that each fit into memory.

Modules: ``cutting`` (dividing staged changes in log order), ``whole`` (all runs of a batch, as one
``Upsert``), ``spread`` (the same by tasks on executors, each with some of the keys).
"""
