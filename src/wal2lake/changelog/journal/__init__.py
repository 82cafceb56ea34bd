"""The journal: the publisher's messages, raw, durable within milliseconds.

Takes: payloads as they arrive, with their lengths. Gives: their place in the journal; all records
after a crash. Owns: the ``journal-<n>`` files and their bytes (docs/formats/journal.md). Never:
decodes a row.

    journal   append, sync, recover, remove sealed files; start here
    format    the bytes of a file: every writer next to its reader
    handover  queue to the thread that decodes: bounded memory, never blocks the writer
    gulp      the facts that the journal needs of messages, found without decoding
"""
