"""Encoding and decoding of every protocol that PostgreSQL uses on a wire.

Takes: bytes that another room has read. Gives: messages as immutable values, or Arrow
batches of them; bytes for messages; ProtocolViolation for bytes that PostgreSQL would not send.
Owns: the state that a protocol needs between two messages, never more than a connection's.
Never: a socket, a file, a clock, a policy.

    fields      the fields of all messages
    pgoutput    logical replication messages of protocols 1 to 4, one by one
    copyboth    the CopyData payloads around them, both directions
    stream      the rules between messages, and the scalar reader that checks them
    columnar    the same rules for whole buffers, into Arrow: the hot path. Needs NumPy
    encoder     the inverse of columnar, from Arrow to pieces for a socket. Needs NumPy
    replication replication commands, text to values and back; the server's side of CopyBoth
    frontback   the frontend/backend protocol 3.0
    scram       SCRAM-SHA-256, both sides; ``saslprep`` prepares its passwords

Public names are imported from those modules; this one imports nothing, so that a process
without NumPy can use the rest.
"""
