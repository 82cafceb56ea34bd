"""The walreceiver of one subscription: a process of its own, without Spark.

Takes: a walsender's CopyBoth stream. Gives: journal and segments of the change log;
positions upstream; an exported snapshot while tables are being copied. Owns: the
connections to the publisher, the journal, the words ``received`` and ``logged`` of the
progress file. Never: waits for the lake, reports a position that a power cut could
take back.

    walreceiver                  one run: connect, check, stream, report; start here
    gulps, feedback              what was read, divided; what is said upstream (pure)
    threads/                     what stands beside the reader: log, segments, the server's word
    source/                      can this source, and its slot, go on from here?
    negotiation, twophase        what is asked of the walsender
    remotetypes                  text or binary? the publisher's types, for binary values
    keeper, patience             the snapshot of copies, and when a failing table's turn comes
"""
