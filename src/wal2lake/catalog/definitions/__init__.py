"""Changes of table definitions.

Takes: a definition and changes. Gives: the next definition, and the earlier ones. Owns: rows of
``relation_history`` and of publications. Never: changes a table's rows.

    columnchanges  plans ALTER TABLE's actions; pure
    history        definitions of earlier versions of a table
    publications   publications, which follow changes of columns
"""
