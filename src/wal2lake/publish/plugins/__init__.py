"""Output plugins turn transactions into messages for a client.

Takes: transactions, the client's options. Gives: payloads. Owns: the plugins' options and formats.
Never: reads the log, or sends.

    port           the interface of plugins, a documented Protocol
    loading        finds a plugin by name: built in, or an installed package's entry point
    pgoutput       PostgreSQL's own, for subscribers
    test_decoding  PostgreSQL's example: text
    wal2json       JSON, by transaction or by event
"""
