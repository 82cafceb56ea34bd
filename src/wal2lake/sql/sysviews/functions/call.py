"""The context of a catalog function, and the names that it reads.

Comes in: ``Facts``, the source and the session of the running query. ``SystemCatalog`` sets a
``Call`` under its lock. Goes out: the search path, relations by name, the parts of a qualified
name. The first argument of every function of this room is a ``Call``.

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
    """A call of a function that waits for workers or for a lock."""

    function: str
    """PostgreSQL's name, or ``wal2lake.``'s."""
    arguments: tuple[object, ...]
    """Arguments, of the types that the function declares; none is null."""


class AnswerNeeded(Wal2LakeError):
    """The query cannot go on without the answer to a request."""

    def __init__(self, request: FunctionRequest) -> None:
        super().__init__(f"{request.function}() has not been answered")
        self.request = request


@dataclass(slots=True)
class Call:
    """The context of the running query. One query runs at a time, under the engine's lock."""

    facts: Facts
    source: CatalogSource
    context: SessionContext
    now: datetime
    failure: Wal2LakeError | None = None
    """The error of a function. The engine's exception has only its text."""
    requests: list[FunctionRequest] = field(default_factory=list)
    """Requests to carry out once the query has run and the engine's lock is free."""
    answers: Mapping[FunctionRequest, object] = field(default_factory=dict)
    """Answers to requests that had to be carried out before the query could run."""
    emitted: int = 0
    """Number of calls so far that are requests of their own, whatever their arguments."""

    def ask(self, request: FunctionRequest) -> object:
        """Return the answer; raises AnswerNeeded if there is none yet."""
        if request not in self.answers:
            raise AnswerNeeded(request)
        return self.answers[request]

    @property
    def role(self) -> Oid:
        """The OID of the current role."""
        return current_role(self.facts, self.context)

    def search_path(self, *, implicit: bool = True) -> list[str]:
        """Return the existing schemas of the path; pg_catalog comes first unless it is listed."""
        schemas = set(self.facts.namespace_names.values())
        path = []
        for name in identifier_list(self.context.parameters["search_path"]):
            schema = self.context.current_user if name == "$user" else name
            if schema in schemas and schema not in path:
                path.append(schema)
        if implicit and PG_CATALOG not in path:
            path.insert(0, PG_CATALOG)
        return path

    def visible(self, relation: RelationFacts) -> bool:
        """Whether an unqualified name means this relation."""
        for schema in self.search_path():
            first = self.facts.by_name.get((schema, relation.name))
            if first is not None:
                return first.oid == relation.oid
        return False

    def relation_named(self, text: str) -> RelationFacts | None:
        """Return the relation that a name means for regclass, or None; raises 42602."""
        schema, name = qualified_name(text)
        if schema is not None:
            return self.facts.by_name.get((schema, name))
        for candidate in self.search_path():
            relation = self.facts.by_name.get((candidate, name))
            if relation is not None:
                return relation
        return None


def identifier_list(text: str) -> list[str]:
    """SplitIdentifierString(): split names at commas; unquoted names are folded."""
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
    end = 1
    while (end := text.find('"', end)) >= 0:
        if text[end + 1 : end + 2] != '"':
            return text[1:end].replace('""', '"'), text[end + 1 :]
        end += 2
    raise UsageError("invalid name syntax", sqlstate="42602")


def name_parts(text: str) -> list[str]:
    """stringToQualifiedNameList(): split a name at its dots; raises 42602."""
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
    """Return the parts of a name without the database; raises 0A000 for another database."""
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
    """Return the schema, if it is named, and the name of a relation; raises 42602."""
    parts = in_database(name_parts(text), "relation", '"')
    return (parts[0] if len(parts) == 2 else None), parts[-1]
