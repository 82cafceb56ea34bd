"""Files in a node's directory that describe the running node to others.

Takes: a directory. Gives: whether a node runs, its address, its processes, and how to log in. Owns:
``wal2lake.pid``, ``passfile``, ``run/status.json`` and ``run/web.json``. Never: asks the node
itself, so it works when nothing runs.

    lockfile    one node per directory; the lines of PostgreSQL's postmaster.pid
    passfile    the command line's login
    status      the supervisor's view of its children
    report      writes lock file and status file in each round
    webstatus   where the web process listens
    warehouse   checks that tables can be written
    storetrial  tries object stores and the log's store
"""
