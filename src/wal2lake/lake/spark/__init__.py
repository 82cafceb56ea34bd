"""Spark itself: the session, the jars it needs, work for its executors, its errors.

Takes: settings, functions to run. Gives: a session whose driver is this process, answers or
errors in PostgreSQL's words. Owns: the JVM's life and options, the pinned jars, FAIR pools.
Never: what a table is.

Modules: ``session``, ``jars``, ``executors``, ``errors``, ``texts``.
"""
