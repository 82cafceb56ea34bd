"""``wal2lake completion``: scripts that complete this program's commands in a shell.

Takes: the name of a shell. Gives: a script on standard output. Owns: the form of the scripts.
Never: knows an argument of its own (``describe`` reads them from the parser).

    run          prints one script
    describe     the parser's subcommands and options, as values
    shells       the scripts of bash, zsh and fish; pure
"""

from wal2lake.cli.completion.run import run

__all__ = ["run"]
