"""Constraints and computed columns of lake tables.

keyconstraints    PRIMARY KEY and UNIQUE
checkconstraints  CHECK
generatedcolumns  GENERATED ALWAYS AS ... STORED
ownedcolumns      serial and identity columns with their sequences
expressionerrors  errors of these expressions, in PostgreSQL's words for each clause
"""
