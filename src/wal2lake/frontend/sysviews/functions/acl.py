"""Who may do what: everybody may use everything that exists.

Comes in: an object by name or OID, after the role where one is named. Goes out: true, or null where
there is nothing to have a privilege on; an error for a name that nothing has.

Source: src/backend/utils/adt/acl.c; manual, section 9.27.2.
"""

from __future__ import annotations

from wal2lake.errors import UndefinedObjectError
from wal2lake.frontend.sysviews.functions.call import Call
from wal2lake.frontend.sysviews.functions.regproc import regclass_in, regnamespace_in


def has_table_privilege(call: Call, *arguments: object) -> bool | None:
    """Every role may use every table; the name must exist."""
    target = arguments[-2] if len(arguments) > 1 else arguments[0]
    if any(argument is None for argument in arguments):
        return None
    oid = regclass_in(call, target)
    return True if oid in call.facts.by_oid else None


def has_schema_privilege(call: Call, *arguments: object) -> bool | None:
    """Every role may use every schema."""
    if any(argument is None for argument in arguments):
        return None
    target = arguments[-2] if len(arguments) > 1 else arguments[0]
    oid = regnamespace_in(call, target)
    return True if oid in call.facts.namespace_names else None


def has_privilege(call: Call, *arguments: object) -> bool | None:
    """Databases, functions, types, columns and so on: allowed."""
    return None if any(argument is None for argument in arguments) else True


def pg_has_role(call: Call, *arguments: object) -> bool | None:
    """Superusers are members of every role, others of their own."""
    if any(argument is None for argument in arguments):
        return None
    member = call.context.user if len(arguments) == 2 else arguments[0]
    role = arguments[-2]
    found = next((r for r in call.facts.roles if member in (r.name, int(r.oid))), None)
    if found is None:
        raise UndefinedObjectError(f'role "{member}" does not exist')
    return found.superuser or role in (found.name, int(found.oid))
