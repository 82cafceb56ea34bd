"""The context of a catalog function, and the names that it reads.

Comes in: ``Facts``, the source and the session of the running query; the engine sets a ``Call``
under its lock. Goes out: the search path, relations by name, the parts of a qualified name. Every
function of this room takes a ``Call`` first.

Sources: src/backend/catalog/namespace.c, src/backend/utils/adt/varlena.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from wal2lake.errors import FeatureNotSupportedError, UsageError, Wal2LakeError
from wal2lake.model import DATABASE, Oid
from wal2lake.sql.backend import SessionContext
from wal2lake.sql.grammar import fold
from wal2lake.sql.sysviews.declarations.relations import PG_CATALOG
from wal2lake.sql.sysviews.rows.facts import Facts, RelationFacts, current_role
from wal2lake.sql.sysviews.source import CatalogSource


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    """A call of a function that takes its time: it waits for workers, or for a lock."""

    function: str
    """PostgreSQL's name, or ``wal2lake.``'s."""
    arguments: tuple[object, ...]
    """Arguments, of the types that the function declares; none is null."""


class AnswerNeeded(Wal2LakeError):
    """The query cannot go on without an answer, which takes its time."""

    def __init__(self, request: FunctionRequest) -> None:
        super().__init__(f"{request.function}() has not been answered")
        self.request = request


@dataclass(slots=True)
class Call:
    """The context of the running query; one at a time, under the engine's lock."""

    facts: Facts
    source: CatalogSource
    context: SessionContext
    now: datetime
    failure: Wal2LakeError | None = None
    """An error of a function: the engine's own exception has only its text."""
    requests: list[FunctionRequest] = field(default_factory=list)
    """Requests to carry out once the query has run and the engine's lock is free."""
    answers: Mapping[FunctionRequest, object] = field(default_factory=dict)
    """Answers to requests that had to be carried out before the query could run."""
    emitted: int = 0
    """How many calls the query has come to that each do something of their own."""

    def ask(self, request: FunctionRequest) -> object:
        """The answer; raises Asked if there is none yet."""
        if request not in self.answers:
            raise AnswerNeeded(request)
        return self.answers[request]

    @property
    def role(self) -> Oid:
        """The current user's."""
        return current_role(self.facts, self.context)

    def search_path(self, *, implicit: bool = True) -> list[str]:
        """The schemas that exist, in order; pg_catalog comes first unless it is listed."""
        known = set(self.facts.namespace_names.values())
        path = []
        for name in identifier_list(self.context.parameters["search_path"]):
            wanted = self.context.current_user if name == "$user" else name
            if wanted in known and wanted not in path:
                path.append(wanted)
        if implicit and PG_CATALOG not in path:
            path.insert(0, PG_CATALOG)
        return path

    def visible(self, relation: RelationFacts) -> bool:
        """Whether an unqualified name means this relation."""
        for schema in self.search_path():
            found = self.facts.by_name.get((schema, relation.name))
            if found is not None:
                return found.oid == relation.oid
        return False

    def relation_named(self, text: str) -> RelationFacts | None:
        """regclass's reading of a name, None if there is none; raises 42602."""
        schema, name = qualified_name(text)
        if schema is not None:
            return self.facts.by_name.get((schema, name))
        for candidate in self.search_path():
            found = self.facts.by_name.get((candidate, name))
            if found is not None:
                return found
        return None


def identifier_list(text: str) -> list[str]:
    """SplitIdentifierString(): names between commas, quoted or folded."""
    names = []
    rest = text.strip()
    while rest:
        if rest.startswith('"'):
            name, rest = _quoted(rest)
        else:
            name, _, tail = rest.partition(",")
            rest = rest[len(name) :] if tail or "," in rest else ""
            name = fold(name.strip())
        if name:
            names.append(name)
        rest = rest.strip().removeprefix(",").strip()
    return names


def _quoted(text: str) -> tuple[str, str]:
    at = 1
    while (at := text.find('"', at)) >= 0:
        if text[at + 1 : at + 2] != '"':
            return text[1:at].replace('""', '"'), text[at + 1 :]
        at += 2
    raise UsageError("invalid name syntax", sqlstate="42602")


def name_parts(text: str) -> list[str]:
    """stringToQualifiedNameList(): names between dots, quoted or folded; raises 42602."""
    parts: list[str] = []
    rest = text.strip()
    while True:
        if rest.startswith('"'):
            name, rest = _quoted(rest)
        else:
            name = rest.partition(".")[0]
            rest = rest[len(name) :]
            name = fold(name.strip())
        if not name:
            raise UsageError("invalid name syntax", sqlstate="42602")
        parts.append(name)
        rest = rest.strip()
        if not rest:
            return parts
        if not rest.startswith("."):
            raise UsageError("invalid name syntax", sqlstate="42602")
        rest = rest[1:].strip()


def in_database(parts: list[str], what: str = "qualified", mark: str = "") -> list[str]:
    """The parts of a name without the database's; raises 0A000 for another database."""
    shown = ".".join(parts)
    if len(parts) > 3:
        raise UsageError(
            f"improper {what} name (too many dotted names): {shown}", sqlstate="42601"
        )
    if len(parts) == 3 and parts[0] != DATABASE:
        raise FeatureNotSupportedError(
            f"cross-database references are not implemented: {mark}{shown}{mark}"
        )
    return parts[-2:]


def qualified_name(text: str) -> tuple[str | None, str]:
    """``schema.name`` or ``name`` of a relation, quoted or folded; raises 42602."""
    parts = in_database(name_parts(text), "relation", '"')
    return (parts[0] if len(parts) == 2 else None), parts[-1]
