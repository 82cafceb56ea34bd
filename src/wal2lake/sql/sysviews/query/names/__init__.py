"""Resolves the names of a catalog query.

scopes          the names that an expression can use
unqualified     column names without a table
namedarguments  arguments that a call names
"""
