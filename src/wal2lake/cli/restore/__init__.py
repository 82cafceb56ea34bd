"""``wal2lake restore``: makes a node's directory from a backup, here or on another machine.

Takes: a backup's directory, the new places. Gives: a node that can be started. Owns: the settings
that name places. Never: reads what the backup has without its checksum.

    run       the command
    rewriting changes values in the text of wal2lake.toml; pure
"""

from wal2lake.cli.restore.run import run

__all__ = ["run"]
