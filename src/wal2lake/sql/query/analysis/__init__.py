"""Finds the types in a statement and translates each operation according to its operands' types.

Takes: a statement's tree whose table names are replaced. Gives: the same tree in Spark's terms, and
the types of its columns. Owns: nothing. Never: passes on a function or operator for which it has no
rule.

    queries         SELECT, VALUES, WITH, UNION; start here
    sources         FROM
    shapes          forms of SELECT that Spark lacks, and clauses that are refused
    writes          the values of INSERT, UPDATE and DELETE
    expressions     one expression, from its operands up
    rowcomparisons  comparisons of rows
    functions/      rules of functions and operators
    aggregates/     rules of aggregates and window functions
    names           names of columns that the query does not name
    scopes          the column that a name refers to
"""
