"""Where a query's rows come from: Spark, or the files of its one table.

Takes: a translated query whose privileges have been looked at. Gives: fields and batches in the
formats that were asked for. Owns: which of the ways it is. Never: looks a name up.

    answers        the way of each query
    filtered       rows of a table that a row filter lets through, from its files
    plainanswers   simple queries of small tables, from their files
"""
