"""Translates PostgreSQL statements on lake tables to Spark SQL, and the results back.

Takes: SQL text with its parameters, table definitions; Arrow batches. Gives: Spark SQL on
given versions of tables; field descriptions and encoded values. Owns: nothing. Never: runs a
query, looks into the catalog, passes on an expression for which it has no rule.

    translate        queries; start here
    writes           INSERT, UPDATE and DELETE
    changes/         their clauses
    writeparsing     the trees of writes; refuses clauses without a rule
    generatedalways  refusals of values for generated and identity columns
    plain, matching  statements that need no Spark: their shape, their conditions on rows
    constants        values of constants, without Spark
    qualified        column names with a schema
    dialect          PostgreSQL's language for sqlglot
    analysis/        types of expressions, and the meaning of operators and functions
    values/          casts, constants, numbers, dates and times in Spark's terms
    results          Spark's results as PostgreSQL's
"""
