"""Output plugins: transactions to what a client reads.

port           what a plugin is: a documented Protocol
pgoutput       PostgreSQL's own, for subscribers
test_decoding  PostgreSQL's example: text
wal2json       JSON, by transaction or by event
loading        by name: built in, or an installed package's entry point
"""
