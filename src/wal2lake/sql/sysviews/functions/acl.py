"""Privilege inquiries: has_table_privilege() and its kin, pg_has_role().

Comes in: a role if the call names one, an object by name or OID, and privileges as text. Goes out:
true if the role has at least one of the privileges; null if no object has the OID; an error if no
object has the name.

Source: src/backend/utils/adt/acl.c; manual, section 9.27.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wal2lake.catalog import DATABASE_OWNER
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.model import (
    DATABASE,
    DATABASE_OID,
    NAMES,
    PUBLIC,
    Acl,
    ObjectKind,
    Oid,
)
from wal2lake.sql.sysviews.functions.call import Call
from wal2lake.sql.sysviews.functions.regproc import regclass_in, regnamespace_in

_GRANT_OPTION: Final = " WITH GRANT OPTION"


def _letters_of(kind: ObjectKind, letters: str) -> Mapping[str, str]:
    return {NAMES[letter]: letter for letter in letters if letter in kind.all}


_TABLE: Final = _letters_of(ObjectKind.TABLE, ObjectKind.TABLE.all)
_COLUMN: Final = _letters_of(ObjectKind.TABLE, "rawx")
_SCHEMA: Final = _letters_of(ObjectKind.SCHEMA, ObjectKind.SCHEMA.all)
_DATABASE: Final = {
    **_letters_of(ObjectKind.DATABASE, ObjectKind.DATABASE.all),
    "TEMP": "T",
}


def has_table_privilege(call: Call, *arguments: object) -> bool | None:
    """has_table_privilege([role,] table, privileges)."""
    return _on_table(call, arguments, _TABLE)


def has_any_column_privilege(call: Call, *arguments: object) -> bool | None:
    """Look at the table's privileges: single columns have none of their own."""
    return _on_table(call, arguments, _COLUMN)


def has_column_privilege(call: Call, *arguments: object) -> bool | None:
    """has_column_privilege([role,] table, column, privileges)."""
    if any(argument is None for argument in arguments):
        return None
    *role, table, column, privileges = arguments
    oid = regclass_in(call, table)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None:
        return None
    numbers = {a.name: a.number for a in relation.attributes}
    exists = column in (numbers.values() if isinstance(column, int) else numbers)
    if not exists:
        if isinstance(column, int):
            return None
        raise UndefinedObjectError(
            f'column "{column}" of relation "{relation.name}" does not exist',
            sqlstate="42703",
        )
    return _on_table(call, (*role, oid, privileges), _COLUMN)


def _on_table(
    call: Call, arguments: tuple[object, ...], letters: Mapping[str, str]
) -> bool | None:
    if any(argument is None for argument in arguments):
        return None
    role = _role(call, arguments)
    oid = regclass_in(call, arguments[-2])
    wanted = _wanted(str(arguments[-1]), letters)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None:
        return None
    return _has(call, role, wanted, ObjectKind.TABLE, Oid(relation.owner), relation.acl)


def has_schema_privilege(call: Call, *arguments: object) -> bool | None:
    """has_schema_privilege([role,] schema, privileges)."""
    if any(argument is None for argument in arguments):
        return None
    role = _role(call, arguments)
    oid = regnamespace_in(call, arguments[-2])
    wanted = _wanted(str(arguments[-1]), _SCHEMA)
    if oid not in call.facts.namespace_names:
        return None
    owner, acl = call.facts.namespace_access(oid)
    return _has(call, role, wanted, ObjectKind.SCHEMA, owner, acl)


def has_database_privilege(call: Call, *arguments: object) -> bool | None:
    """has_database_privilege([role,] database, privileges)."""
    if any(argument is None for argument in arguments):
        return None
    role = _role(call, arguments)
    database = arguments[-2]
    wanted = _wanted(str(arguments[-1]), _DATABASE)
    if isinstance(database, int):
        if database != DATABASE_OID:
            return None
    elif database != DATABASE:
        raise UndefinedObjectError(
            f'database "{database}" does not exist', sqlstate="3D000"
        )
    acl = call.facts.database_acl
    return _has(call, role, wanted, ObjectKind.DATABASE, DATABASE_OWNER, acl)


def has_privilege(call: Call, *arguments: object) -> bool | None:
    """Allow the use of functions, types, languages and so on."""
    return None if any(argument is None for argument in arguments) else True


def pg_has_role(call: Call, *arguments: object) -> bool | None:
    """pg_has_role([member,] role, MEMBER | USAGE | SET [WITH ADMIN OPTION])."""
    if any(argument is None for argument in arguments):
        return None
    authority = call.facts.authority
    member = _role(call, arguments)
    role = _named(call, arguments[-2])
    answers = []
    for item in str(arguments[-1]).split(","):
        word = " ".join(item.upper().split())
        kind = word.removesuffix(" WITH ADMIN OPTION").removesuffix(_GRANT_OPTION)
        if kind not in ("MEMBER", "USAGE", "SET"):
            raise _unrecognized(item)
        if kind != word:
            answers.append(authority.is_admin_of(member, role))
        elif kind == "MEMBER":
            answers.append(authority.is_member(member, role))
        elif kind == "USAGE":
            answers.append(authority.has_privileges_of(member, role))
        else:
            answers.append(authority.can_set_role(member, role))
    return any(answers)


# ---- parts ---------------------------------------------------------------------------


def _role(call: Call, arguments: tuple[object, ...]) -> Oid:
    """Return the role of the first argument, or the current role."""
    if len(arguments) == 2:
        return call.role
    if arguments[0] == "public":
        return PUBLIC
    return _named(call, arguments[0])


def _named(call: Call, value: object) -> Oid:
    if isinstance(value, int):
        return Oid(value)
    role = call.facts.authority.by_name.get(str(value))
    if role is None:
        raise UndefinedObjectError(f'role "{value}" does not exist')
    return role.oid


def _wanted(text: str, letters: Mapping[str, str]) -> list[tuple[str, bool]]:
    """convert_any_priv_string(): return letters, and whether each is with grant option."""
    privileges = []
    for item in text.split(","):
        word = " ".join(item.upper().split())
        plain = word.removesuffix(_GRANT_OPTION)
        if plain not in letters:
            raise _unrecognized(item)
        privileges.append((letters[plain], plain != word))
    return privileges


def _unrecognized(item: str) -> UsageError:
    return UsageError(f'unrecognized privilege type: "{item.strip()}"')


def _has(
    call: Call,
    role: Oid,
    wanted: list[tuple[str, bool]],
    kind: ObjectKind,
    owner: Oid,
    acl: Acl | None,
) -> bool:
    authority = call.facts.authority
    have = authority.letters(role, kind, owner, acl)
    if any(letter in have for letter, option in wanted if not option):
        return True
    options = [letter for letter, option in wanted if option]
    if not options:
        return False
    grantable = authority.grantable(role, kind, owner, acl)
    return any(letter in grantable for letter in options)
