"""Parses and prints ALTER TABLE.

Takes: a cursor behind the two words. Gives: a statement value. Owns: the list of actions that
this node executes. Never: looks a table up.

    alterstatements  the values
    parsing          tokens to values
    printing         values to text
"""
