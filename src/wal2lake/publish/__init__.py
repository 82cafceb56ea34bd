"""What leaves a node: publications, and what of a change each of them sends.

Takes: the catalog's publications and tables, changes as the log has them. Gives: the tables,
columns and rows that are published. Owns: row filters. Never: changes the catalog, knows Spark or a
socket.

    publications   which tables and columns a publication has; what it asks of a replica identity
    rowfilter/     expressions of WHERE: their tree, text, values, and the transform of UPDATE
"""
