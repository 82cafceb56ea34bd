"""A query's types, found and acted upon: each operator by what it means for its operands.

Takes: a statement's tree, names of tables settled. Gives: the same tree in Spark's terms, the
types of its columns. Owns: nothing. Never: lets a function or operator pass that it has no
rule for.

    queries       SELECT, VALUES, WITH, UNION; start here
    sources       what FROM says
    shapes        forms of SELECT that Spark lacks, and clauses that nobody reads
    writes        values that INSERT, UPDATE and DELETE give to columns
    expressions   one expression, bottom up; ``rows`` compared
    functions/    rules of functions and operators
    aggregates/   rules of aggregates and window functions
    names         of columns that the query does not name
    scopes        which column a name means
"""
