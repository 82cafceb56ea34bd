"""PostgreSQL 18's predefined roles, with its OIDs, and the statements that put them in a catalog.

In: nothing. Out: OIDs, and rows for a new catalog or an older one.

Source: pg_authid.dat, pg_auth_members of a new PostgreSQL 18 cluster; manual, section 21.5.
"""

from __future__ import annotations

from typing import Final

from wal2lake.model import Oid

PG_READ_ALL_SETTINGS: Final = Oid(3374)
PG_READ_ALL_STATS: Final = Oid(3375)
PG_DATABASE_OWNER: Final = Oid(6171)
PG_READ_ALL_DATA: Final = Oid(6181)
PG_WRITE_ALL_DATA: Final = Oid(6182)
PG_CREATE_SUBSCRIPTION: Final = Oid(6304)
PG_MAINTAIN: Final = Oid(6337)

FIRST_FREE_OID: Final = 16384
"""Roles below this OID belong to the system and cannot be altered or dropped."""

_ROLES: Final = (
    (3373, "pg_monitor"),
    (3374, "pg_read_all_settings"),
    (3375, "pg_read_all_stats"),
    (3377, "pg_stat_scan_tables"),
    (4200, "pg_signal_backend"),
    (4544, "pg_checkpoint"),
    (4550, "pg_use_reserved_connections"),
    (4569, "pg_read_server_files"),
    (4570, "pg_write_server_files"),
    (4571, "pg_execute_server_program"),
    (6171, "pg_database_owner"),
    (6181, "pg_read_all_data"),
    (6182, "pg_write_all_data"),
    (6304, "pg_create_subscription"),
    (6337, "pg_maintain"),
    (6392, "pg_signal_autovacuum_worker"),
)

_MEMBERS: Final = (
    (10308, 3374, 3373),
    (10309, 3375, 3373),
    (10310, 3377, 3373),
)

INSERTS: Final = (
    "insert into role (oid, name, superuser, password, login) values "
    + ", ".join(f"({oid}, '{name}', 0, null, 0)" for oid, name in _ROLES)
    + ";\n"
    "insert into role_member (oid, roleid, member, grantor, admin, inherit, set_role)"
    " values "
    + ", ".join(
        f"({oid}, {role}, {member}, 10, 0, 1, 1)" for oid, role, member in _MEMBERS
    )
    + ";\n"
    # As after initdb, schema public belongs to the owner of the database.
    "update namespace set owner = 6171,"
    """ acl = '[[6171, 6171, "UC", ""], [0, 6171, "U", ""]]'"""
    " where oid = 2200 and owner = 10;\n"
)
"""Statements without semicolons inside."""
