"""Files in a node's directory that describe the running node to others.

Takes: a directory. Gives: is there a node, where does it listen, how do I get in, what runs.
Owns: ``wal2lake.pid``, ``passfile`` and ``run/status.json``. Never: asks the node itself, so it
works when nothing runs.

    lockfile   one node per directory; the lines of PostgreSQL's postmaster.pid
    passfile   how the command line gets in without asking
    status     the supervisor's view of its children
    warehouse  can tables be written?
"""
