"""``wal2lake top``: a live view of a node in a terminal.

Takes: a node's directory, keys. Gives: frames. Owns: their layout. Never: asks the node, judges
(``health`` does), keeps a number of its own but the last few looks, from which rates come.

    run        looks, draws, waits for keys
    keys       keys change the view; pure
    rates      rows and bytes per second, from the differences of looks; pure
    frame      one frame of any size: header, a page, the keys; pure
    overview, tables, publisher    the pages' parts; pure
    columns    tables of text in the width that there is; pure
"""

from wal2lake.cli.top.run import run

__all__ = ["run"]
