"""VERIFY: proves that tables have exactly the rows of their sources, at one LSN.

Takes the parsed statement; returns a row for each table. For each subscription in turn:

    slot     a temporary slot at the publisher exports a snapshot; its consistent point is S. A
             session imports the snapshot, and the slot ends
    state    the apply worker ends a batch at S and publishes the state of S (``states``)
    tables   each table is compared: the snapshot there, the version of that state here

Apply goes on meanwhile, and so does the publisher. Its VACUUM keeps what the snapshot sees until
the subscription's last table has been compared. Each table there is locked (ACCESS SHARE) while it
is compared, and no longer (``sourcetables``).

A table that has no common state with its source, or whose copy differs by intention, is reported as
not comparable, with the reason, and never as different. So is a table for which anything fails, and
each table of a subscription for which anything fails: the others are compared all the same.

The caller needs what ALTER SUBSCRIPTION needs, because the statement connects to the publisher.

The statement is read-only on both sides, but for the results, which the catalog keeps
(wal2lake.verification, wal2lake.differences). With ``repair = automatic`` under [verify] it then
has the listed rows written anew, as REPAIR does, and the answer says so. The result stays
``different``, because that is what it was. PostgreSQL has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog import (
    ComparedTable,
    FoundDifference,
    SnapshotVector,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.commands.maintenance.comparedsource import ComparedSource, HeldState
from wal2lake.commands.maintenance.repairing import repair_table
from wal2lake.commands.maintenance.states import PREREQUISITE, state_at_snapshot
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.owner import check_may_change
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.local.node import Caller, EngineParts, need_subscription, need_table
from wal2lake.model import Lsn, Oid
from wal2lake.pg import Publisher, RemoteTable, Session
from wal2lake.sql.backend import Notice, Outcome, ResultBatch
from wal2lake.sql.grammar.maintenance import VerifyTables
from wal2lake.verify import Comparison, NotComparable, check_hashes, compare, pair
from wal2lake.wire.frontback import FieldDescription

_TEXT, _INT8, _PG_LSN = 25, 20, 3220

FIELDS: Final = (
    FieldDescription("subscription", _TEXT),
    FieldDescription("table", _TEXT),
    FieldDescription("result", _TEXT),
    FieldDescription("lsn", _PG_LSN),
    FieldDescription("blocks", _INT8),
    FieldDescription("rows", _INT8),
    FieldDescription("differing_rows", _INT8),
    FieldDescription("detail", _TEXT),
)
"""The columns of the answer."""

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
NOT_COMPARABLE: Final = "not comparable"

_NOT_NAMED: Final = (
    "rows are not named, because the role that writes the table may not read it"
)

_QUERY_CANCELED: Final = "57014"

_MOST_PLACES: Final = 20
"""Rows that are named in the answer, and blocks that are named without their rows."""


@dataclass(frozen=True, slots=True)
class TableProof:
    """The answer for one table."""

    subscription: str
    table: str
    result: str
    lsn: Lsn | None = None
    comparison: Comparison | None = None
    detail: str | None = None

    @property
    def row(self) -> tuple[str | None, ...]:
        """The values of ``FIELDS``."""
        compared = self.comparison
        numbers: tuple[str | None, ...] = (None, None, None)
        if compared is not None:
            numbers = (
                str(compared.blocks),
                str(compared.rows),
                str(compared.differing_rows),
            )
        lsn = None if self.lsn is None else str(self.lsn)
        return (
            self.subscription,
            self.table,
            self.result,
            lsn,
            *numbers,
            self.detail,
        )


def verify(node: EngineParts, caller: Caller, statement: VerifyTables) -> Outcome:
    """Execute VERIFY."""
    outside_block(caller, "VERIFY")
    proofs: list[TableProof] = []
    for subscription, rels in _chosen(node, caller, statement):
        verification = _Verification(node, caller, subscription)
        compared: list[TableProof] = []
        for proof in verification.run(rels):
            compared.append(proof)
            caller.notice(
                Notice(f'table "{proof.table}": {proof.result}', severity="INFO")
            )
        # Not before all are compared: the snapshot and its state have ended by now.
        if node.settings.verify.repair == "automatic":
            compared = list(map(verification.repaired, rels, compared))
        proofs.extend(compared)
    columns = tuple(
        [None if value is None else value.encode() for value in column]
        for column in zip(*(proof.row for proof in proofs), strict=True)
    )
    batches = (ResultBatch(len(proofs), columns),) if proofs else ()
    return Outcome("VERIFY", FIELDS, iter(batches))


# ---- which tables ----------------------------------------------------------------------


def _chosen(
    node: EngineParts, caller: Caller, statement: VerifyTables
) -> list[tuple[Subscription, list[SubscriptionRel]]]:
    """Return the tables to be compared, by subscription."""
    subscriptions = list(node.catalog.subscriptions())
    if statement.subscription is not None:
        subscriptions = [need_subscription(node, statement.subscription)]
    named = [
        need_table(node.catalog, caller, name.schema, name.name)
        for name in statement.tables
    ]
    wanted = {table.oid for table in named}
    chosen: list[tuple[Subscription, list[SubscriptionRel]]] = []
    chosen_oids: set[Oid] = set()
    for subscription in subscriptions:
        rels = [
            rel
            for rel in node.catalog.rels()
            if rel.subid == subscription.oid and (not wanted or rel.relid in wanted)
        ]
        if rels:
            check_may_change(node, caller, subscription)
            chosen.append((subscription, rels))
            chosen_oids.update(rel.relid for rel in rels)
    for table in named:
        if table.oid not in chosen_oids:
            suffix = (
                "any subscription"
                if statement.subscription is None
                else f'subscription "{statement.subscription}"'
            )
            raise UsageError(
                f'table "{table.qualified}" does not belong to {suffix}',
                sqlstate=PREREQUISITE,
                hint="SELECT * FROM pg_subscription_rel lists the tables that do.",
            )
    return chosen


class _Verification:
    """Compares the tables of one subscription."""

    def __init__(
        self, node: EngineParts, caller: Caller, subscription: Subscription
    ) -> None:
        self._node = node
        self._caller = caller
        self._subscription = subscription
        self._source = ComparedSource(node, caller, subscription)
        self._rights = node.catalog.target_rights(subscription)

    def run(self, rels: Sequence[SubscriptionRel]) -> Iterator[TableProof]:
        """Yield the answer for each table. Only a cancel raises."""
        left = list(rels)
        try:
            for proof in self._proofs(rels):
                del left[0]
                yield proof
        except Wal2LakeError as error:
            reason = self._reason(error)
            for rel in left:
                yield self._not_comparable(rel, reason)

    def repaired(self, rel: SubscriptionRel, proof: TableProof) -> TableProof:
        """Repair the listed rows of a table that differs. Return the proof with the outcome. Only a
        cancel raises."""
        table = self._node.catalog.table_by_oid(rel.relid)
        if proof.result != DIFFERENT or table is None:
            return proof
        try:
            count = repair_table(
                self._node, self._caller, self._subscription, rel, table
            )
        except Wal2LakeError as error:
            outcome = f"not repaired: {self._reason(error)}"
        else:
            outcome = f"{count} {'row' if count == 1 else 'rows'} repaired"
        return replace(proof, detail=f"{proof.detail}\n{outcome}")

    def _proofs(self, rels: Sequence[SubscriptionRel]) -> Iterator[TableProof]:
        """Yield the answers in order, until an error concerns all that are left."""
        subscription = self._subscription
        self._source.check_comparable()
        with ExitStack() as open_sessions:
            session, lsn, vector = state_at_snapshot(
                self._node.apply,
                subscription,
                self._source.exported,
                self._source.imported,
                self._caller.check,
                open_sessions,
            )
            taken_at = datetime.now(UTC).isoformat(timespec="microseconds")
            held = HeldState(vector)
            self._node.snapshots.register_past(held)
            check_hashes(session)
            if not Publisher(session).publish_everything(subscription.publications):
                raise NotComparable("a publication does not publish all operations")
            for rel in rels:
                yield self._prove(session, rel, lsn, taken_at, vector)
            # The versions are kept until here.
            del held

    def _reason(self, error: Wal2LakeError) -> str:
        """Return an error as the reason why a table is not comparable; raise it if it is a
        cancel."""
        self._caller.check()
        if isinstance(error, UsageError) and error.sqlstate == _QUERY_CANCELED:
            raise error
        parts = (error.message, error.detail, error.hint)
        return "\n".join(part for part in parts if part)

    def _not_comparable(self, rel: SubscriptionRel, reason: str) -> TableProof:
        table = self._node.catalog.table_by_oid(rel.relid)
        remote = f"{rel.remote_namespace}.{rel.remote_name}"
        name = remote if table is None else table.qualified
        return TableProof(self._subscription.name, name, NOT_COMPARABLE, detail=reason)

    # ---- one table -----------------------------------------------------------------------

    def _prove(
        self,
        session: Session,
        rel: SubscriptionRel,
        lsn: Lsn,
        taken_at: str,
        vector: SnapshotVector,
    ) -> TableProof:
        """Compare a table and record the result, or say why that is not possible."""
        try:
            table = self._source.comparable(rel, vector)
            quoted = self._rights.may_quote(table)
            with self._source.locked(session, rel) as remote:
                result = self._compare(session, table, remote, vector, quoted)
        except Wal2LakeError as error:
            return self._not_comparable(rel, self._reason(error))
        changed = "" if result.is_equal else self._changed_by_policies(rel)
        if not changed:
            self._node.catalog.note_verification(
                rel.subid, rel.relid, _noted(lsn, taken_at, result)
            )
        if result.is_equal:
            return TableProof(
                self._subscription.name, table.qualified, EQUAL, lsn, result
            )
        detail = described(result)
        if not quoted:
            detail += f"\n{_NOT_NAMED}"
        if changed:
            return self._not_comparable(
                rel, f"value policies have changed values of {changed} ({detail})"
            )
        return TableProof(
            self._subscription.name,
            table.qualified,
            DIFFERENT,
            lsn,
            result,
            detail,
        )

    def _compare(
        self,
        session: Session,
        table: TableDef,
        remote: RemoteTable,
        vector: SnapshotVector,
        quoted: bool,
    ) -> Comparison:
        paired = pair(
            session,
            remote,
            self._node.tables,
            table,
            vector.versions[int(table.oid)],
            lambda rows: self._caller.check(),
        )
        return compare(
            paired.source, paired.copy, paired.columns, paired.key, quoted=quoted
        )

    def _changed_by_policies(self, rel: SubscriptionRel) -> str:
        """Return the columns of the table in which value policies have changed values."""
        return ", ".join(
            sorted(
                {
                    total.coercion.column
                    for total in self._node.catalog.coercions()
                    if total.subid == rel.subid and total.relid == rel.relid
                }
            )
        )


def _noted(lsn: Lsn, taken_at: str, result: Comparison) -> ComparedTable:
    """Return the result as the catalog keeps it."""
    return ComparedTable(
        lsn,
        taken_at,
        result.blocks,
        result.rows,
        result.differing_rows,
        tuple(
            FoundDifference(
                difference.kind.value,
                difference.key,
                tuple(
                    (name, there, here)
                    for name, (there, here) in zip(
                        difference.columns, difference.values, strict=True
                    )
                ),
            )
            for difference in result.named
        ),
    )


def described(result: Comparison) -> str:
    """Describe the differences of a table."""
    counts = ", ".join(f"{count} {kind.value}" for kind, count in result.counts)
    read = result.differing_blocks - len(result.unread)
    lines: list[str] = []
    if read:
        lines.append(f"{counts} in {read} of {result.blocks} blocks")
    if result.unread:
        rows = sum(block.differing_rows for block in result.unread)
        plural = "rows" if rows > 1 else "row"
        lines.append(
            f"at least {rows} {plural} in {len(result.unread)} of {result.blocks} blocks,"
            " which have too many rows to compare one by one"
        )
    lines += [str(difference) for difference in result.named[:_MOST_PLACES]]
    lines += [str(block) for block in result.unread[:_MOST_PLACES]]
    return "\n".join(lines)
