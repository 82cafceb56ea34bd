"""Applies the change log to the tables.

Takes: sealed segments. Gives: table commits that carry their cursor, then the floor and a snapshot
vector in the catalog. Owns: the word ``applied`` of the progress file and the hand-over of a copied
table to the stream (f -> s -> r). Never: connects to the publisher, uses Spark (lake does),
publishes part of a transaction.
"""
