"""Transactions that have not committed: where their changes wait.

Takes: decoded blocks of streamed and prepared transactions. Gives: what commits, to the
segment writer, without writing its rows again. Owns: the ``spool-<n>`` files
(docs/formats/spool.md). Never: lets a row of a rolled back subtransaction through.

    intake       events of the decoder, to the segments or to a spool; start here
    spools       all spools of one log
    spool        one transaction
    checkpoint   the bytes of spool-<n>.json
    prepared     what is prepared, for those who look
"""
