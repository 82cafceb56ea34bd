"""The program ``wal2lake``: a node's commands in a shell.

Takes: argument lists. Gives: print, exit codes, a node's directory, a running node. Owns: the
wording of the command line. Never: does what SQL can do, loads Spark, keeps a fact of its own.

    __main__             passes arguments to a subcommand; ``python -m wal2lake.cli``
    options              the arguments and exit codes of all subcommands
    init start stop reload sql    one subcommand each, with ``run``
    copywait             what sql --wait-copies does
    looking              a node's facts, problems and condition, for the next two
    top/                 a live view in a terminal
    status/              the state of a node as text and as JSON
    check/               asks a publisher and prints the findings
    backup/ restore/     copies of a node, and nodes made of them
    demo/                the whole product on a PostgreSQL of its own
    completion/          scripts for bash, zsh and fish
    terminal/            rows as psql prints them, errors as PostgreSQL's programs do

This package imports nothing, so that a subcommand loads only what it needs.
"""
