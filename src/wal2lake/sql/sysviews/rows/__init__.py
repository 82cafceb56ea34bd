"""Rows of the system catalogs and views.

Takes: a ``CatalogSource``. Gives: rows as dicts by column name, a generator for each view.
Owns: the OIDs of objects for which the catalog has none. Never: shows a password.

    facts                relations, attributes and roles as PostgreSQL's catalogs see them
    relations            pg_class and other views of the schema
    cluster              databases, roles, schemas, fixed objects
    replication          subscriptions, their statistics, wal2lake's own views
    problems             what is wrong, and what repairs it; entries in a catalog of others
    log                  the change logs: contents and readers
    information_schema   the standard's views
"""
