"""Output plugins turn transactions into messages for a client.

port           the interface of plugins, a documented Protocol
pgoutput       PostgreSQL's own, for subscribers
test_decoding  PostgreSQL's example: text
wal2json       JSON, by transaction or by event
loading        finds a plugin by name: built in, or an installed package's entry point
"""
