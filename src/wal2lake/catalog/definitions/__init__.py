"""How definitions of tables change.

Takes: a definition and what is to become of it. Gives: the next one, and what it was before. Owns:
rows of ``relation_history`` and of publications. Never: touches a table's rows.

    changes        ALTER TABLE's actions, planned; pure
    history        the definitions that earlier versions of a table have
    publications   what is published of tables, which follows their columns
"""
