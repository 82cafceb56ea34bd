"""PostgreSQL's catalog functions, as Python functions that the embedded engine calls.

Takes: the values of a query, and a ``Call``: what the running query may see. Gives: values.
Owns: which functions there are. Never: waits for anything (``call.Request``).

    pg_proc      the table: names, arguments, results; start here
    call         facts, session and search path of the running query
    regproc      regclass and its kin, pg_lsn
    objects      definitions, visibility, comments
    origins      replication origins; what asks for a change of a subscription's tables
    acl, dbsize, session    privileges, sizes, the session itself
    texts/       quoting and format(); values of types with a modifier
"""
