"""Rows of the system catalogs and views.

Takes: a ``CatalogSource``. Gives: rows as dicts by column name, a generator for each view.
Owns: the OIDs of objects that the catalog does not number. Never: shows a password.

    facts                relations, attributes and roles as PostgreSQL's catalogs see them
    relations            pg_class and what follows from the schema
    cluster              databases, roles, schemas, fixed objects
    replication          subscriptions, their statistics, wal2lake's own views
    log                  the change logs: what they hold, who needs it
    information_schema   the standard's views
"""
