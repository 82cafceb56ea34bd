"""Decides about privileges: roles, their memberships, privileges on objects.

Takes: rows of the catalog. Gives: ``Authority``, which answers from memory. Owns: the rules.
Never: reads the catalog by itself (``roles`` has its SQL, called by the store), raises an error
in a command's name.

    authority   what follows from roles, memberships and acls; start here
    predefined  the roles that every PostgreSQL 18 has
    roles       the SQL of ``role``, ``role_member`` and the acls
    targets     whose privileges count when a subscription writes a table
"""
