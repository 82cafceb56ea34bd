"""Reads a query's rows, by Spark or from the files of its one table.

Takes: a translated query whose privileges have been checked. Gives: fields and batches in the
requested formats. Owns: the choice of the way. Never: looks a name up.
    answers        the way for each query
    filtered       rows of a table that satisfy a row filter, from the table's files
    plainanswers   simple queries of small tables, from the tables' files
"""
