"""Acls and memberships, against the rules of acl.c."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wal2lake.catalog import Authority, Role, RoleMember, Subscription, TableDef
from wal2lake.catalog.access.targets import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    denied_target,
)
from wal2lake.errors import UsageError
from wal2lake.model import PUBLIC, Acl, ObjectKind, Oid

BOSS, OWNER, ANN, BOB, GROUP, READERS = (Oid(n) for n in (10, 20, 21, 22, 23, 6181))
TABLE = ObjectKind.TABLE


def role(oid: Oid, name: str, *, superuser: bool = False) -> Role:
    return Role(oid, name, superuser, None)


def authority(*members: RoleMember) -> Authority:
    names = {OWNER: "owner", ANN: "ann", BOB: "bob", GROUP: "group", READERS: "readers"}
    roles = [role(oid, name) for oid, name in names.items()]
    return Authority((role(BOSS, "boss", superuser=True), *roles), members)


def member(of: Oid, who: Oid, **options: bool) -> RoleMember:
    return RoleMember(Oid(int(of) * 1000 + int(who)), of, who, BOSS, **options)


def grant(acl: Acl, grantor: Oid, grantee: Oid, letters: str, *, option: bool) -> Acl:
    return acl.grant(grantor, grantee, letters, grantable=option)


def revoke(acl: Acl, grantor: Oid, grantee: Oid, letters: str, **how: bool) -> Acl:
    options = {"option_only": False, "cascade": False, **how}
    return acl.revoke(grantor, grantee, letters, owner=OWNER, **options)


def test_without_an_acl_the_owner_alone_may() -> None:
    known = authority()
    assert known.letters(OWNER, TABLE, OWNER, None) == "arwdDxtm"
    assert known.letters(ANN, TABLE, OWNER, None) == ""
    assert known.letters(BOSS, TABLE, OWNER, None) == "arwdDxtm"
    assert known.letters(ANN, ObjectKind.DATABASE, BOSS, None) == "Tc"


def test_privileges_come_through_memberships_that_inherit() -> None:
    acl = grant(Acl.default(TABLE, OWNER), OWNER, GROUP, "r", option=False)
    assert authority(member(GROUP, ANN)).letters(ANN, TABLE, OWNER, acl) == "r"
    silent = authority(member(GROUP, ANN, inherit=False))
    assert silent.letters(ANN, TABLE, OWNER, acl) == ""
    assert silent.can_set_role(ANN, GROUP)
    assert silent.is_member(ANN, GROUP) and not silent.has_privileges_of(ANN, GROUP)
    fixed = authority(member(GROUP, ANN, set_role=False))
    assert not fixed.can_set_role(ANN, GROUP) and fixed.has_privileges_of(ANN, GROUP)


def test_a_membership_of_a_membership_counts() -> None:
    known = authority(member(GROUP, ANN), member(OWNER, GROUP))
    assert known.letters(ANN, TABLE, OWNER, None) == "arwdDxtm"
    assert known.owns(ANN, OWNER) and not known.owns(OWNER, ANN)


def test_whoever_reads_all_data_reads_every_table_and_writes_none() -> None:
    known = authority(member(READERS, ANN))
    assert known.letters(ANN, TABLE, OWNER, None) == "r"
    assert known.letters(ANN, ObjectKind.SCHEMA, OWNER, None) == "U"


def test_what_was_granted_on_goes_with_the_grant_option() -> None:
    acl = grant(Acl.default(TABLE, OWNER), OWNER, ANN, "rw", option=True)
    acl = grant(acl, ANN, BOB, "r", option=False)
    with pytest.raises(UsageError, match="dependent privileges exist"):
        revoke(acl, OWNER, ANN, "r")
    # What nobody depends on goes alone.
    assert revoke(acl, OWNER, ANN, "w").granted([ANN]) == "r"
    left = revoke(acl, OWNER, ANN, "r", cascade=True)
    assert (left.granted([ANN]), left.granted([BOB])) == ("w", "")
    option = revoke(acl, OWNER, ANN, "r", option_only=True, cascade=True)
    assert (option.granted([ANN]), option.granted([BOB])) == ("rw", "")


def test_grant_options_do_not_go_round() -> None:
    acl = grant(Acl.default(TABLE, OWNER), OWNER, ANN, "r", option=True)
    acl = grant(acl, ANN, BOB, "r", option=True)
    with pytest.raises(UsageError, match="granted back to your own grantor"):
        grant(acl, BOB, ANN, "r", option=True)
    grant(acl, BOB, ANN, "r", option=False)


def test_a_new_owner_takes_the_old_ones_part() -> None:
    acl = grant(Acl.default(TABLE, OWNER), OWNER, ANN, "r", option=False)
    changed = acl.change_owner(OWNER, ANN)
    assert changed.granted([ANN]) == "arwdDxtm" and changed.roles == {ANN}


def test_an_acl_survives_the_catalog_and_is_printed_as_postgresql_does() -> None:
    acl = grant(Acl.default(TABLE, OWNER), OWNER, ANN, "wr", option=True)
    acl = grant(acl, OWNER, PUBLIC, "r", option=False)
    assert Acl.decode(acl.encode()) == acl
    names = {int(OWNER): "owner", int(ANN): 'An "n"'}
    assert acl.items_text(names) == [
        "owner=arwdDxtm/owner",
        '"An ""n"""=r*w*/owner',
        "=r/owner",
    ]


SUBSCRIPTION = Subscription(Oid(1), "s", ANN, True, "", "s", ())
RUNS_AS_OWNER = replace(SUBSCRIPTION, options={"run_as_owner": "true"})
TARGET = TableDef(Oid(2), "public", "t", OWNER, (), (), "/t")


def test_a_subscription_writes_as_the_tables_owner_if_it_may() -> None:
    refused = denied_target(authority(), SUBSCRIPTION, TARGET, INSERT)
    assert refused is not None and refused.sqlstate == "42501"
    assert refused.message == 'role "ann" cannot SET ROLE to "owner"'
    allowed = authority(member(OWNER, ANN, inherit=False))
    assert denied_target(allowed, SUBSCRIPTION, TARGET, DELETE) is None
    boss = replace(SUBSCRIPTION, owner=BOSS)
    assert denied_target(authority(), boss, TARGET, UPDATE) is None
    # An owner can take his own privileges away.
    acl = revoke(Acl.default(TABLE, OWNER), OWNER, OWNER, "a")
    refused = denied_target(authority(), boss, replace(TARGET, acl=acl), INSERT)
    assert refused is not None and refused.message == "permission denied for table t"


def test_run_as_owner_needs_the_privileges_themselves() -> None:
    known = authority(member(OWNER, ANN, inherit=False))
    refused = denied_target(known, RUNS_AS_OWNER, TARGET, INSERT)
    assert refused is not None and refused.message == "permission denied for table t"
    acl = grant(Acl.default(TABLE, OWNER), OWNER, ANN, "aw", option=False)
    target = replace(TARGET, acl=acl)
    assert denied_target(authority(), RUNS_AS_OWNER, target, INSERT) is None
    # An UPDATE looks for its row.
    assert denied_target(authority(), RUNS_AS_OWNER, target, UPDATE) is not None


def test_what_the_hint_says_lets_a_subscription_write() -> None:
    """Both ways, each to its end."""

    def refused(
        subscription: Subscription, table: TableDef, *members: RoleMember
    ) -> str | None:
        known = authority(*members)
        for letters in (INSERT, UPDATE, DELETE, TRUNCATE):
            found = denied_target(known, subscription, table, letters)
            if found is not None:
                return found.hint or ""
        return None

    assert refused(SUBSCRIPTION, TARGET) == (
        "Grant the table's owner to the subscription's owner; or set run_as_owner = true and"
        " grant the subscription's owner SELECT, INSERT, UPDATE, DELETE and TRUNCATE on the"
        " table."
    )
    assert refused(SUBSCRIPTION, TARGET, member(OWNER, ANN)) is None
    acl = grant(Acl.default(TABLE, OWNER), OWNER, ANN, "rawdD", option=False)
    assert refused(RUNS_AS_OWNER, TARGET) is not None
    assert refused(RUNS_AS_OWNER, replace(TARGET, acl=acl)) is None
