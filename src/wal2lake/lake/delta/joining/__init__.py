"""Checks files before they join a table.

Takes: a version of a table, finished files below its location. Gives: whether they may join it,
and why not. Owns: nothing. Never: changes a file, or the table.

Modules: ``fit`` (their columns), ``uniqueness`` (their keys), ``rows`` (their rows, for Spark).
"""
