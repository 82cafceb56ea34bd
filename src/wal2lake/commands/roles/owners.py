"""ALTER TABLE | SCHEMA ... OWNER TO.

Takes a statement; returns the command tag. The new owner replaces the old one in the ACL.

Source: ATExecChangeOwner() in tablecmds.c; AlterSchemaOwner_internal() in schemacmds.c.
"""

from __future__ import annotations

from wal2lake.commands.roles.names import check_can_set_role, need_role
from wal2lake.errors import UndefinedObjectError
from wal2lake.local.access import (
    check_database_create,
    check_owner,
    check_schema_for,
)
from wal2lake.local.node import Caller, find_table, need_schema
from wal2lake.local.ports import Definitions, HasCatalog
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.access.rolestatements import AlterOwner, GrantTarget


def alter_owner(node: Definitions, caller: Caller, statement: AlterOwner) -> str:
    """ALTER TABLE ... OWNER TO and ALTER SCHEMA ... OWNER TO."""
    with node.ddl_lock:
        if statement.target is GrantTarget.SCHEMA:
            _schema(node, caller, statement)
            return "ALTER SCHEMA"
        _table(node, caller, statement)
    return "ALTER TABLE"


def _table(node: HasCatalog, caller: Caller, statement: AlterOwner) -> None:
    name = statement.name
    table = find_table(node.catalog, caller, name.schema, name.name)
    if table is None:
        shown = name.name if name.schema is None else f"{name.schema}.{name.name}"
        text = f'relation "{shown}" does not exist'
        if not statement.if_exists:
            raise UndefinedObjectError(text, sqlstate="42P01")
        caller.notice(Notice(f"{text}, skipping"))
        return
    check_owner(node, caller, "table", table.name, table.owner)
    authority = node.catalog.authority()
    owner = need_role(authority, caller, statement.owner)
    if owner.oid == table.owner:
        return
    if not caller.role.superuser:
        check_can_set_role(authority, caller, owner)
        check_schema_for(node, owner, table.namespace, "C")
    acl = table.acl and table.acl.change_owner(table.owner, owner.oid)
    node.catalog.set_access(tables={table.oid: (owner.oid, acl)})


def _schema(node: HasCatalog, caller: Caller, statement: AlterOwner) -> None:
    name = statement.name.name
    authority = node.catalog.authority()
    owner = need_role(authority, caller, statement.owner)
    schema = need_schema(node.catalog, name)
    if owner.oid == schema.owner:
        return
    check_owner(node, caller, "schema", schema.name, schema.owner)
    check_can_set_role(authority, caller, owner)
    check_database_create(node, caller)
    acl = schema.acl and schema.acl.change_owner(schema.owner, owner.oid)
    node.catalog.set_access(namespaces={schema.oid: (owner.oid, acl)})
