"""PostgreSQL's catalog functions, as Python functions that the embedded engine calls.

Takes: the values of a query, and a ``Call``: what the running query may see. Gives: values.
Owns: which functions there are. Never: changes anything but session parameters.

    pg_proc      the table: names, arguments, results; start here
    call         facts, session and search path of the running query
    regproc      regclass and its kin, pg_lsn
    objects      definitions, visibility, comments
    acl, dbsize, session, text    privileges, sizes, the session itself, quoting and format()
"""
