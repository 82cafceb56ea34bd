"""Understands SQL: statements, their types, queries, system catalogs.

Takes: SQL text, parameters, table definitions. Gives: frozen statements, Spark SQL, rows with
PostgreSQL's types and text. Owns: an embedded SQL engine for catalog queries, nothing durable.
Never: changes a table or the catalog, speaks the protocol.

    grammar/     text to statements, for those that the node executes itself
    parameters/  session parameters and character sets
    query/       queries on lake tables: analysis, translation to Spark, results
    sysviews/    queries on system catalogs
    backend      the port between a session and the executor of its statements

This package imports nothing: callers import the face of a subpackage.
"""
