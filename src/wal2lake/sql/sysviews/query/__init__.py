"""A catalog query for the embedded engine, and its answer as PostgreSQL's.

Takes: SQL in PostgreSQL's dialect; the engine's columns. Gives: the engine's SQL; names, types
and values as PostgreSQL has them. Owns: nothing. Never: runs the query.

    rewrite     the whole translation, over the others; ``is_system_query``
    named...    arguments by their names; rowfunctions, which give rows
    scopes      which column of which relation a name means
    inference   the type of an expression, the name of a result column
    casts       casts and operators of types that the engine has not
    results     the engine's answer, with PostgreSQL's types
"""
