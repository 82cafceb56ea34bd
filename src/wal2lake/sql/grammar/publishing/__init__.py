"""Parses and prints CREATE, ALTER, DROP and COMMENT ON PUBLICATION.

Takes: a cursor behind the words that identify the command. Gives: a statement value. Owns: the
grammar of the expressions of row filters, CHECK constraints and generated columns. Never: knows
a column or the type of a column.

    publicationstatements  the values
    parsing                tokens to values
    expressions            tokens to untyped expressions
    printing               values to text
"""
