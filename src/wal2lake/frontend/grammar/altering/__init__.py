"""ALTER TABLE: parse and print.

Takes: a cursor behind the two words. Gives: a statement value. Owns: which of its many actions
this node executes. Never: looks a table up.

    statements   the values
    parsing      from tokens
    printing     to text
"""
