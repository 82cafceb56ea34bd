"""The SQL that repairs an error of a worker, and whom the error concerns.

In: an error as the catalog has it (message, DETAIL, HINT and CONTEXT as text, SQLSTATE), and its
subscription. Out: ``Remedy``. Pure.

A remedy repeats what the error's HINT says, with the names filled in. It is the way that loses
least: the row that is in the way goes before the table is copied again, and that before a
transaction is skipped. An error for which only a person can choose has no remedy, and its HINT is
all advice that there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import WorkerKind
from wal2lake.health.facts import SubscriptionFacts, TableFacts
from wal2lake.health.problem import Concern

_FIELD: Final = re.compile(r"^(DETAIL|HINT|CONTEXT):  ", re.MULTILINE)
_FINISH: Final = re.compile(r"finished at ([0-9A-F]+/[0-9A-F]+)")
_RELATION: Final = re.compile(r'relation "([^"\n]+)"')
_KEY: Final = re.compile(
    r"[Kk]ey \((?P<names>[^()]+)\)=\((?P<values>.*?)\)"
    r"(?:\.?$|; existing local row|; remote row|; replica identity)",
    re.MULTILINE,
)
_CONFLICT: Final = re.compile(r"conflict=(\w+)")
_CONSTRAINT: Final = re.compile(r'violates check constraint "([^"]+)"')
_COLUMN_CHANGE: Final = re.compile(
    r'ALTER COLUMN ("(?:[^"]|"")+"|\w+) (DROP NOT NULL|DROP EXPRESSION)'
)
_POLICY: Final = re.compile(r'[Aa]dd "([^=]+ = \w+)"[^;]* to value_policies')
_ACTIVE_SLOT: Final = re.compile(r"is active for PID (\d+)")
_NEW_SLOT: Final = re.compile(r"SELECT pg_create_logical_replication_slot\([^)]*\)")

_TAKEN: Final = ("insert_exists", "update_exists", "multiple_unique_conflicts")
_UNREACHABLE: Final = ("08", "57P")
"""Classes of errors with which a server that is away, starting or stopping answers."""
_CREDENTIALS: Final = "28"
_SOURCE_LIMITS: Final = ("53300", "53400")
"""too_many_connections, configuration_limit_exceeded."""
_PERMISSION: Final = "42501"
_OWN_PLACES: Final = (
    "file system of the log directory",
    "file system of the node's directory",
    "log.size_limit_bytes",
)
"""Places that HINTs name of errors which a receiver meets on its own machine. Its other errors are
mostly those of the source, which may have the same SQLSTATE."""
_INTERNAL: Final = "internal error"
_REMOTE: Final = (WorkerKind.RECEIVER.value, WorkerKind.SNAPSHOT.value)


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error of the catalog, taken apart."""

    message: str
    detail: str | None
    hint: str | None
    context: str | None

    @classmethod
    def parse(cls, text: str) -> ErrorText:
        """Take apart the text of ``Wal2LakeError.describe``."""
        message, *rest = _FIELD.split(text)
        fields = dict(
            zip(rest[::2], (part.strip() for part in rest[1::2]), strict=True)
        )
        return cls(
            message.strip(),
            fields.get("DETAIL"),
            fields.get("HINT"),
            fields.get("CONTEXT"),
        )

    @property
    def first_line(self) -> str:
        """The first line of the message."""
        return self.message.partition("\n")[0]

    @property
    def more(self) -> str | None:
        """The rest of the message, DETAIL and CONTEXT."""
        rest = self.message.partition("\n")[2]
        parts = [part for part in (rest, self.detail, self.context) if part]
        return "\n".join(parts) or None


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """An error of one worker, with what it names."""

    subscription: SubscriptionFacts
    worker: str
    """A value of ``WorkerKind``."""
    text: ErrorText
    sqlstate: str | None
    table: TableFacts | None
    """The table that the error names."""

    @property
    def is_remote(self) -> bool:
        """Whether the worker speaks with the source."""
        return self.worker in _REMOTE


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way out of an error."""

    concern: Concern
    sql: str | None = None
    hint: str | None = None


def failure_of(
    subscription: SubscriptionFacts,
    worker: str,
    text: str,
    sqlstate: str | None,
    table: TableFacts | None = None,
) -> WorkerFailure:
    """Read an error. ``table``: the table whose error it is, if that is known."""
    parsed = ErrorText.parse(text)
    if table is None:
        named = {
            name
            for part in (parsed.context, parsed.message)
            for name in _RELATION.findall(part or "")
        }
        table = next((t for t in subscription.tables if t.qualified in named), None)
    return WorkerFailure(subscription, worker, parsed, sqlstate, table)


def remedy_of(failure: WorkerFailure) -> Remedy:
    """Return the way out that loses least."""
    for rule in _RULES:
        remedy = rule(failure)
        if remedy is not None:
            return remedy
    concern = Concern.SOURCE if failure.is_remote else Concern.OPERATOR
    return Remedy(concern, None, failure.text.hint)


# ---- statements, with quoted names -------------------------------------------------------


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a constant, whatever standard_conforming_strings says."""
    constant = "'" + text.replace("'", "''") + "'"
    return "E" + constant.replace("\\", "\\\\") if "\\" in text else constant


def table_name(table: TableFacts) -> str:
    """Return the quoted name of a table here."""
    return f"{quoted(table.namespace)}.{quoted(table.name)}"


def alter_subscription(subscription: SubscriptionFacts, action: str) -> str:
    """Return an ALTER SUBSCRIPTION."""
    return f"ALTER SUBSCRIPTION {quoted(subscription.name)} {action};"


def recopy_all(subscription: SubscriptionFacts) -> str:
    """Return the statement that copies all tables again, through a new slot if need be."""
    return alter_subscription(subscription, "REFRESH PUBLICATION WITH (recopy = true)")


def call_for_table(
    function: str, subscription: SubscriptionFacts, table: TableFacts
) -> str:
    """Return a call of wal2lake.pause_table or a function like it."""
    arguments = f"{literal(table_name(table))}, {literal(subscription.name)}"
    return f"SELECT wal2lake.{function}({arguments});"


# ---- rules, in the order in which they are asked -----------------------------------------


def _own_machine(failure: WorkerFailure) -> Remedy | None:
    hint = failure.text.hint or ""
    internal = failure.text.message == _INTERNAL
    if not internal and not any(place in hint for place in _OWN_PLACES):
        return None
    return Remedy(Concern.OPERATOR, None, hint)


def _unreachable(failure: WorkerFailure) -> Remedy | None:
    state = failure.sqlstate or ""
    if not (failure.is_remote and state.startswith(_UNREACHABLE)):
        return None
    advice = failure.text.hint or (
        "The node tries again by itself. If the source has moved, set its address with"
        f" ALTER SUBSCRIPTION {quoted(failure.subscription.name)} CONNECTION."
    )
    return Remedy(Concern.SOURCE, None, advice)


def _credentials(failure: WorkerFailure) -> Remedy | None:
    if not (failure.is_remote and (failure.sqlstate or "").startswith(_CREDENTIALS)):
        return None
    advice = failure.text.hint or (
        "Set user and password with"
        f" ALTER SUBSCRIPTION {quoted(failure.subscription.name)} CONNECTION, or allow the"
        " connection in the source's pg_hba.conf."
    )
    return Remedy(Concern.OPERATOR, None, advice)


def _slot_in_use(failure: WorkerFailure) -> Remedy | None:
    match = _ACTIVE_SLOT.search(failure.text.message)
    if match is None or not failure.is_remote:
        return None
    sql = f"SELECT pg_terminate_backend({match[1]});"
    return Remedy(Concern.SOURCE, sql, failure.text.hint)


def _missing_slot(failure: WorkerFailure) -> Remedy | None:
    match = _NEW_SLOT.search(failure.text.hint or "")
    if match is None:
        return None
    return Remedy(Concern.SOURCE, f"{match[0]};", failure.text.hint)


def _source_refuses(failure: WorkerFailure) -> Remedy | None:
    is_refusal = failure.sqlstate in (*_SOURCE_LIMITS, _PERMISSION)
    if not (failure.is_remote and is_refusal):
        return None
    return Remedy(Concern.SOURCE, None, failure.text.hint)


def _row_in_the_way(failure: WorkerFailure) -> Remedy | None:
    conflict = _CONFLICT.search(failure.text.message)
    if conflict is None or failure.table is None:
        return None
    sql = None
    if conflict[1] in _TAKEN:
        sql = _delete(failure.table, failure.text.detail or "")
    sql = sql or call_for_table("recopy_table", failure.subscription, failure.table)
    return Remedy(Concern.OPERATOR, sql, failure.text.hint)


def _delete(table: TableFacts, detail: str) -> str | None:
    """Return a DELETE of the row with the key that a conflict's DETAIL shows; None if the key
    cannot be told for certain."""
    match = _KEY.search(detail)
    # A long value is shown with its beginning only.
    if match is None or "..." in match["values"]:
        return None
    names, values = match["names"].split(", "), match["values"].split(", ")
    if len(names) == 1:
        values = [match["values"]]
    if len(names) != len(values):
        return None
    conditions = " AND ".join(
        f"{quoted(name)} = {literal(value)}"
        for name, value in zip(names, values, strict=True)
    )
    return f"DELETE FROM {table_name(table)} WHERE {conditions};"


def _strict_definition(failure: WorkerFailure) -> Remedy | None:
    if failure.table is None:
        return None
    name = table_name(failure.table)
    constraint = _CONSTRAINT.search(failure.text.message)
    change = _COLUMN_CHANGE.search(failure.text.hint or "")
    if constraint is not None:
        sql = f"ALTER TABLE {name} DROP CONSTRAINT {quoted(constraint[1])};"
    elif change is not None:
        sql = f"ALTER TABLE {name} ALTER COLUMN {change[1]} {change[2]};"
    else:
        return None
    return Remedy(Concern.OPERATOR, sql, failure.text.hint)


def _value_policy(failure: WorkerFailure) -> Remedy | None:
    match = _POLICY.search(failure.text.hint or "")
    if match is None:
        return None
    entries = [failure.subscription.value_policies, match[1]]
    policies = literal(", ".join(entry for entry in entries if entry))
    sql = alter_subscription(failure.subscription, f"SET (value_policies = {policies})")
    return Remedy(Concern.OPERATOR, sql, failure.text.hint)


def _text_format(failure: WorkerFailure) -> Remedy | None:
    if "(binary = false)" not in (failure.text.hint or ""):
        return None
    sql = alter_subscription(failure.subscription, "SET (binary = false)")
    if failure.table is not None:
        sql += f"\n{_created_anew(failure, failure.table)}"
    return Remedy(Concern.OPERATOR, sql, failure.text.hint)


def _rows_before_the_copy(failure: WorkerFailure) -> Remedy | None:
    hint = failure.text.hint or ""
    if "has rows that are copied now" not in hint or failure.table is None:
        return None
    sql = call_for_table("recopy_table", failure.subscription, failure.table)
    return Remedy(Concern.OPERATOR, sql, hint)


def _copies_again(failure: WorkerFailure) -> Remedy | None:
    if "(recopy = true)" not in (failure.text.hint or ""):
        return None
    return Remedy(Concern.OPERATOR, recopy_all(failure.subscription), failure.text.hint)


def _new_table(failure: WorkerFailure) -> Remedy | None:
    hint = failure.text.hint or ""
    refresh = alter_subscription(failure.subscription, "REFRESH PUBLICATION")
    if "If the publisher still has the table, ALTER SUBSCRIPTION" in hint:
        return Remedy(Concern.OPERATOR, refresh, hint)
    # Where the source must be changed first, the statements alone would not help.
    if "drop the table here and run" not in hint or "then drop the table" in hint:
        return None
    if failure.table is None:
        return None
    return Remedy(Concern.OPERATOR, _created_anew(failure, failure.table), hint)


def _created_anew(failure: WorkerFailure, table: TableFacts) -> str:
    """Return statements that drop a table here, so that it is created as it is at the source."""
    refresh = alter_subscription(failure.subscription, "REFRESH PUBLICATION")
    return f"DROP TABLE {table_name(table)};\n{refresh}"


def _skip(failure: WorkerFailure) -> Remedy | None:
    match = _FINISH.search(failure.text.context or "")
    if match is None or failure.worker != WorkerKind.APPLY.value:
        return None
    if "ALTER SUBSCRIPTION ... SKIP" not in (failure.text.hint or ""):
        return None
    sql = alter_subscription(failure.subscription, f"SKIP (lsn = {literal(match[1])})")
    return Remedy(Concern.OPERATOR, sql, failure.text.hint)


_RULES: Final[tuple[Callable[[WorkerFailure], Remedy | None], ...]] = (
    _own_machine,
    _unreachable,
    _credentials,
    _slot_in_use,
    _missing_slot,
    _source_refuses,
    _row_in_the_way,
    _strict_definition,
    _value_policy,
    _text_format,
    _rows_before_the_copy,
    _copies_again,
    _skip,
    _new_table,
)
