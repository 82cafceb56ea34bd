"""PostgreSQL's catalog functions, as Python functions that the embedded engine calls.

Takes: the values of a query, and a ``Call``, the context of the running query. Gives: values.
Owns: the table of functions. Never: waits for anything (``call.FunctionRequest``).

    pg_proc      the table: names, arguments, results; start here
    call         facts, session and search path of the running query
    regproc      regclass and its kin, pg_lsn
    objects      definitions, visibility, comments
    replication  replication origins, slots, tables of subscriptions
    acl, dbsize, session    privileges, sizes, the session itself
    texts/       quoting and format(); values of types with a modifier
"""
