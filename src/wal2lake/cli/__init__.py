"""The program ``wal2lake``: what a shell can ask of a node.

Takes: argument lists. Gives: print, exit codes, a node's directory, a running node. Owns: the
wording of the command line. Never: does what SQL can do, loads Spark, keeps a fact of its own.

    __main__             arguments to one of the subcommands; ``python -m wal2lake.cli``
    init start stop status sql    each a subcommand, with ``run``
    check/               asks a publisher, and judges what it hears
    demo/                the whole product on a PostgreSQL of its own
    print, errors        rows as psql prints them, errors as PostgreSQL's programs do

This package imports nothing, so that a subcommand loads only what it needs.
"""
