"""Translates catalog queries for the embedded engine, and its results for PostgreSQL's clients.

Takes: SQL in PostgreSQL's dialect; the engine's columns. Gives: the engine's SQL; names, types
and values as PostgreSQL has them. Owns: nothing. Never: runs the query.

    rewrite        the whole translation, over the others
    names/         the names of a query
    inference      the type of an expression, the name of a result column
    casts          casts and operators of types that the engine does not have
    rowfunctions   functions that return rows
    patterns       SUBSTRING with a regular expression
    queryerrors    errors that PostgreSQL raises before a query runs
    limits         the row counts of LIMIT and OFFSET
    signatures     calls as the client wrote them, for errors
    failures       errors of the engine in PostgreSQL's words
    results        the engine's results with PostgreSQL's types
"""
