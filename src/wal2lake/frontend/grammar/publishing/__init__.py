"""Publications: CREATE, ALTER, DROP and COMMENT ON PUBLICATION, and the expressions of row filters.

Takes: a cursor behind the words that tell the command. Gives: a statement value. Owns: the grammar
of an expression, as far as a row filter may have one. Never: knows a column or a type of one.

    statements   the values
    parsing      from tokens; ``expressions`` the WHERE of a table
    printing     to text
"""
