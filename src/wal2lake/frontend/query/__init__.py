"""Queries on lake tables: PostgreSQL's dialect in, PostgreSQL's answers out.

Takes: SQL text with its parameters, table definitions; Arrow batches. Gives: Spark SQL on
given versions of tables; field descriptions and encoded values. Owns: nothing. Never: runs a
query, looks into the catalog.

    translate   PostgreSQL's SQL as Spark's
    results     Spark's answers as PostgreSQL's
"""
