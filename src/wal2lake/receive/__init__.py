"""The walreceiver of one subscription: a process of its own, without Spark.

Takes: a walsender's CopyBoth stream. Gives: journal and segments of the change log; positions
upstream; an exported snapshot while tables are being copied. Owns: the connections to the
publisher, the journal, the words ``received`` and ``logged`` of the progress file. Never: waits for
the lake, reports a position that a power loss could undo.

    walreceiver                  one run: connect, check, stream, report; start here
    gulps, feedback              dividing what was read; positions to report upstream (pure)
    threads/                     threads beside the reader: log, segments, position checks
    source/                      checks that source and slot can continue the log
    negotiation, twophase        options of START_REPLICATION
    measures                     counters, commit times by position
    remotetypes                  text or binary format; the publisher's types for binary values
    keeper, patience             the snapshot of copies, and pauses of tables whose copy fails
"""
