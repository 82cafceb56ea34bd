"""``wal2lake status``: the state of a node, running or not.

Takes: a node's directory. Gives: lines or JSON, exit codes. Owns: the names in the JSON, which are
a contract. Never: asks the node itself, judges (``health`` does).

    run         reads, prints, and chooses the exit code
    document    facts and problems as JSON; pure
    lines       facts and problems as text; pure
"""

from wal2lake.cli.status.run import run

__all__ = ["run"]
