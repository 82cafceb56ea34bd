"""Privileges on one object: an aclitem array as a value.

Comes in: the object's owner and kind, grants and revokes. Goes out: a new ``Acl``, aclitem text,
the letters that a role was granted. An ``Acl`` of None in the catalog stands for the defaults of
its kind, as in PostgreSQL; the first GRANT or REVOKE writes them out.

Source: src/backend/utils/adt/acl.c (aclupdate, recursive_revoke, select_best_grantor), acl.h;
manual, section 5.8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.model.lsn import Oid

PUBLIC: Final = Oid(0)
"""ACL_ID_PUBLIC: every role."""

_ORDER: Final = "arwdDxtXUCTcsAm"
"""ACL_ALL_RIGHTS_STR: the order in which letters are printed."""

NAMES: Final = {
    "a": "INSERT",
    "r": "SELECT",
    "w": "UPDATE",
    "d": "DELETE",
    "D": "TRUNCATE",
    "x": "REFERENCES",
    "t": "TRIGGER",
    "m": "MAINTAIN",
    "U": "USAGE",
    "C": "CREATE",
    "T": "TEMPORARY",
    "c": "CONNECT",
}
"""Letters to privilege names; TEMP is TEMPORARY's other name."""


class ObjectKind(Enum):
    """Kinds of objects with privileges: PostgreSQL's word for the kind, and all its letters."""

    TABLE = ("table", "arwdDxtm", "")
    SCHEMA = ("schema", "UC", "")
    DATABASE = ("database", "CTc", "Tc")

    def __init__(self, word: str, all_letters: str, for_public: str) -> None:
        self.word = word
        self.all = all_letters
        self.for_public = for_public
        """Privileges that PUBLIC has unless they were revoked."""


@dataclass(frozen=True, slots=True)
class AclItem:
    """Privileges that one role granted to another."""

    grantee: Oid
    """PUBLIC, or a role."""
    grantor: Oid
    letters: str
    grantable: str = ""
    """Privileges that the grantee may grant to others (WITH GRANT OPTION)."""


def _ordered(letters: Iterable[str]) -> str:
    present = set(letters)
    return "".join(c for c in _ORDER if c in present)


def _without(letters: str, others: Iterable[str]) -> str:
    return _ordered(set(letters) - set(others))


@dataclass(frozen=True, slots=True)
class Acl:
    """All grants on one object, in the order in which they were first made."""

    items: tuple[AclItem, ...] = ()

    def __iter__(self) -> Iterator[AclItem]:
        return iter(self.items)

    @classmethod
    def default(cls, kind: ObjectKind, owner: Oid) -> Acl:
        """acldefault(): the owner has all privileges."""
        items = []
        if kind.for_public:
            items.append(AclItem(PUBLIC, owner, _ordered(kind.for_public)))
        items.append(AclItem(owner, owner, _ordered(kind.all)))
        return cls(tuple(items))

    # ---- reading --------------------------------------------------------------------

    def granted(self, grantees: Iterable[Oid]) -> str:
        """Return the privileges that were granted to at least one of the grantees."""
        wanted = set(grantees)
        return _ordered(
            letter
            for item in self.items
            if item.grantee in wanted
            for letter in item.letters
        )

    def grantable(self, grantees: Iterable[Oid]) -> str:
        """Return the privileges that at least one of the grantees may grant."""
        wanted = set(grantees)
        return _ordered(
            letter
            for item in self.items
            if item.grantee in wanted
            for letter in item.grantable
        )

    @property
    def roles(self) -> set[Oid]:
        """All grantees and grantors except PUBLIC."""
        named = {i.grantee for i in self.items} | {i.grantor for i in self.items}
        return named - {PUBLIC}

    # ---- writing --------------------------------------------------------------------

    def grant(
        self, grantor: Oid, grantee: Oid, letters: str, *, grantable: bool
    ) -> Acl:
        """aclupdate() with ACL_MODECHG_ADD. 0LP01 if the grants would be circular."""
        if grantable:
            self._check_circular(grantor, grantee, letters)
        item = self._item(grantee, grantor)
        changed = AclItem(
            grantee,
            grantor,
            _ordered(item.letters + letters),
            _ordered(item.grantable + (letters if grantable else "")),
        )
        return self._with(changed)

    def revoke(
        self,
        grantor: Oid,
        grantee: Oid,
        letters: str,
        *,
        option_only: bool,
        cascade: bool,
        owner: Oid,
    ) -> Acl:
        """aclupdate() with ACL_MODECHG_DEL. 2BP01 if other grants depend on these privileges,
        unless ``cascade``."""
        item = self._item(grantee, grantor)
        changed = replace(
            item,
            letters=item.letters if option_only else _without(item.letters, letters),
            grantable=_without(item.grantable, letters),
        )
        lost = _without(item.grantable, changed.grantable)
        acl = self._with(changed)
        # The owner keeps all grant options, so no grant can lose its basis.
        if lost and grantee != owner:
            return acl._revoke_dependent(grantee, lost, cascade=cascade, owner=owner)
        return acl

    def change_owner(self, old: Oid, new: Oid) -> Acl:
        """aclnewowner(): the new owner replaces the old one as grantor and as grantee."""
        merged: dict[tuple[Oid, Oid], AclItem] = {}
        for item in self.items:
            grantee = new if item.grantee == old else item.grantee
            grantor = new if item.grantor == old else item.grantor
            previous = merged.get((grantee, grantor), AclItem(grantee, grantor, ""))
            merged[grantee, grantor] = AclItem(
                grantee,
                grantor,
                _ordered(previous.letters + item.letters),
                _ordered(previous.grantable + item.grantable),
            )
        return Acl(tuple(merged.values()))

    def _revoke_dependent(
        self, grantee: Oid, letters: str, *, cascade: bool, owner: Oid
    ) -> Acl:
        """recursive_revoke(): revoke grants for which ``grantee`` no longer has the option."""
        still = set(self.grantable([grantee]))
        gone = _ordered(set(letters) - still)
        acl = self
        for item in self.items:
            dependent = _ordered(set(item.letters) & set(gone))
            if item.grantor != grantee or not dependent:
                continue
            if not cascade:
                raise UsageError(
                    "dependent privileges exist",
                    sqlstate="2BP01",
                    hint="Use CASCADE to revoke them too.",
                )
            acl = acl.revoke(
                grantee,
                item.grantee,
                dependent,
                option_only=False,
                cascade=True,
                owner=owner,
            )
        return acl

    def _check_circular(self, grantor: Oid, grantee: Oid, letters: str) -> None:
        """check_circularity(): a grant option must not come to depend on itself."""
        reached, grown = {grantee}, True
        while grown:
            grantees = {
                i.grantee
                for i in self.items
                if i.grantor in reached and set(i.grantable) & set(letters)
            }
            grown = not grantees <= reached
            reached |= grantees
        if grantor in reached and grantor != grantee:
            raise UsageError(
                "grant options cannot be granted back to your own grantor",
                sqlstate="0LP01",
            )

    def _item(self, grantee: Oid, grantor: Oid) -> AclItem:
        return next(
            (i for i in self.items if (i.grantee, i.grantor) == (grantee, grantor)),
            AclItem(grantee, grantor, ""),
        )

    def _with(self, changed: AclItem) -> Acl:
        items = list(self.items)
        for index, item in enumerate(items):
            if (item.grantee, item.grantor) == (changed.grantee, changed.grantor):
                items[index] = changed
                break
        else:
            items.append(changed)
        return Acl(tuple(i for i in items if i.letters or i.grantable))

    # ---- text -----------------------------------------------------------------------

    def encode(self) -> str:
        """Encode the list as the catalog keeps it."""
        return json.dumps(
            [[int(i.grantee), int(i.grantor), i.letters, i.grantable] for i in self]
        )

    @classmethod
    def decode(cls, text: str | None) -> Acl | None:
        """Decode the catalog's text; None: the defaults of the object's kind."""
        if text is None:
            return None
        return cls(
            tuple(
                AclItem(Oid(grantee), Oid(grantor), letters, grantable)
                for grantee, grantor, letters, grantable in json.loads(text)
            )
        )

    def items_text(self, names: dict[int, str]) -> list[str]:
        """aclitemout() of each item; a role that no longer exists is shown as its OID."""
        return [
            f"{'' if i.grantee == PUBLIC else _name(names, i.grantee)}="
            + "".join(c + ("*" if c in i.grantable else "") for c in i.letters)
            + f"/{_name(names, i.grantor)}"
            for i in self.items
        ]


_SAFE_NAME: Final = re.compile(r"\w+\Z", re.ASCII)


def _name(names: dict[int, str], oid: Oid) -> str:
    """putid(): the name, quoted unless it has only letters, digits and underscores."""
    name = names.get(int(oid), str(int(oid)))
    return name if _SAFE_NAME.match(name) else '"' + name.replace('"', '""') + '"'
