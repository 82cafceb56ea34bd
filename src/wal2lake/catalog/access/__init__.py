"""Decides about privileges: roles, their memberships, privileges on objects.

Takes: rows of the catalog. Gives: ``Authority``, which decides from memory. Owns: the rules. Never:
reads the catalog (the store calls the SQL in ``roles``), raises a command's errors.

    authority   privileges derived from roles, memberships and acls; start here
    predefined  PostgreSQL 18's predefined roles
    roles       the SQL of ``role``, ``role_member`` and the acls
    targets     the privileges that a subscription needs to write a table
"""
