"""The journal: what the publisher sent, raw, durable within milliseconds.

Takes: payloads as they came, with their lengths. Gives: their place once they are on disk; the
records again after a crash. Owns: the ``journal-<n>`` files and their bytes
(docs/formats/journal.md). Never: decodes a row.

    journal   append, sync, recover, drop what is sealed; start here
    format    the bytes of a file: every writer next to its reader
    handover  what was appended, for the thread that decodes it: bounded, never a wait
    gulp      what must be known of the messages in a record, found without decoding
"""
