"""Queries on lake tables: PostgreSQL's dialect in, PostgreSQL's answers out.

Takes: SQL text with its parameters, table definitions; Arrow batches. Gives: Spark SQL on
given versions of tables; field descriptions and encoded values. Owns: nothing. Never: runs a
query, looks into the catalog, lets pass what it has no rule for.

    translate   PostgreSQL's SQL as Spark's; start here
    writes      INSERT, UPDATE and DELETE as Spark's
    analysis/   types of expressions, and what operators and functions make of them
    values/     casts, constants, numbers, dates and times in Spark's terms
    results     Spark's answers as PostgreSQL's
"""
