"""Parts of the facts, each from one kind of file.

Takes: rows of the catalog, positions, directories, pids. Gives: parts of ``NodeFacts``. Never:
judges, writes.

    lag            stages and tables: how far behind
    reports        what processes have reported (telemetry)
    publisher      slots and walsenders
    tables         the tables of a subscription
    changes        when values have changed
    surroundings   processes, file systems, sizes of logs, the certificate
"""
