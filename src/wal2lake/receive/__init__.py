"""The walreceiver of one subscription: a process of its own, without Spark.

Takes: a walsender's CopyBoth stream. Gives: journal and segments of the change log;
positions upstream; an exported snapshot while tables are being copied. Owns: the
connections to the publisher, the journal, the words ``received`` and ``logged`` of the
progress file. Never: waits for the lake, reports a position that a power cut could
take back.
"""
