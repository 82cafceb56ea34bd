"""Changes of transactions that have not committed.

Takes: decoded blocks of streamed and prepared transactions. Gives: transactions that commit, to the
segment writer, without writing their rows again. Owns: the ``spool-<n>`` files
(docs/formats/spool.md). Never: passes on a row of a subtransaction that was rolled back.

    intake       events of the decoder, to the segments or to a spool; start here
    spools       all spools of one log
    spool        one transaction
    checkpoint   the bytes of spool-<n>.json
    prepared     reading of prepared transactions
    held         their files, until a copy of the log elsewhere has them
"""
