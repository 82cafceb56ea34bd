"""``wal2lake backup``: copies a node, running or stopped, as it is at one moment.

Takes: a node's directory, a new directory. Gives: the backup there. Owns: the form of a backup.
Never: stops or asks the node.

    run       the command
    moment    what belongs together at one moment, held by hard links
    leftover  what VACUUM will remove, and a backup leaves out
    links     hard links to the files of a directory
    copying   copies files, with sizes and checksums
    manifest  backup.json, which makes a backup complete

Why links: the log and the tables go on while gigabytes are copied, and VACUUM and the log's
retention remove what the backup still needs. A link takes microseconds and keeps the content.
"""

from wal2lake.cli.backup.run import run

__all__ = ["run"]
