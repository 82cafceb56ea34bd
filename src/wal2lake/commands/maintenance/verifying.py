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

The statement is read-only on both sides. PostgreSQL has no counterpart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import SnapshotVector, Subscription, SubscriptionRel, TableDef
from wal2lake.commands.maintenance.sourcetables import (
    LOCK_TIMEOUT_MS,
    import_snapshot,
    locked_table,
)
from wal2lake.commands.maintenance.states import PREREQUISITE, state_at_snapshot
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.owner import check_may_change
from wal2lake.commands.subscription.publisher import (
    connect_ordinary,
    connect_publisher,
)
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.lake.plain import PlainRead
from wal2lake.local.node import Caller, EngineParts, need_subscription, need_table
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.pg import Publisher, RemoteTable, Session, nudged
from wal2lake.pg.publisher import SlotCreated
from wal2lake.pgtypes import arrow_from_ddl
from wal2lake.sql.backend import Notice, Outcome, ResultBatch
from wal2lake.sql.grammar.maintenance import VerifyTables
from wal2lake.verify import (
    Comparison,
    LakeSide,
    NotComparable,
    ServerSide,
    TableStatements,
    check_hashes,
    compare,
    form_of,
)
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

_ANSWER_SECONDS: Final = 300.0
"""Longest wait for an answer from the source's catalogs, beside that for a lock. A guess. Digests
and hashes are awaited without a limit, because they take the longer the larger the table is."""

_NOT_NAMED: Final = (
    "rows are not named, because the role that writes the table may not read it"
)

_QUERY_CANCELED: Final = "57014"

_MOST_PLACES: Final = 20
"""Blocks that are named without their rows."""


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
        for proof in _Verification(node, caller, subscription).run(rels):
            proofs.append(proof)
            caller.notice(
                Notice(f'table "{proof.table}": {proof.result}', severity="INFO")
            )
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


class _HeldState:
    """Keeps the versions of a state from VACUUM for as long as it exists."""

    def __init__(self, vector: SnapshotVector) -> None:
        self._vector = vector

    def reads(self, location: str, relids: Collection[Oid]) -> Iterable[int]:
        """Return the versions of a table that are compared."""
        versions = self._vector.versions
        return [versions[int(relid)] for relid in relids if int(relid) in versions]


class _Verification:
    """Compares the tables of one subscription."""

    def __init__(
        self, node: EngineParts, caller: Caller, subscription: Subscription
    ) -> None:
        self._node = node
        self._caller = caller
        self._subscription = subscription
        self._must_use_password = node.catalog.must_use_password(subscription)
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

    def _proofs(self, rels: Sequence[SubscriptionRel]) -> Iterator[TableProof]:
        """Yield the answers in order, until an error concerns all that are left."""
        subscription = self._subscription
        self._check_comparable()
        with ExitStack() as open_sessions:
            session, lsn, vector = state_at_snapshot(
                self._node.apply,
                subscription,
                self._exported,
                self._import,
                self._caller.check,
                open_sessions,
            )
            held = _HeldState(vector)
            self._node.snapshots.register_past(held)
            check_hashes(session)
            if not Publisher(session).publish_everything(subscription.publications):
                raise NotComparable("a publication does not publish all operations")
            for rel in rels:
                yield self._prove(session, rel, lsn, vector)
            # The versions are kept until here.
            del held

    def _check_comparable(self) -> None:
        """Raise NotComparable if no table of the subscription can be compared."""
        subscription = self._subscription
        if not subscription.runs:
            raise NotComparable(
                "the subscription is disabled, so its tables stand still"
            )
        if subscription.origin == "none":
            raise NotComparable("origin = none leaves out changes that the source has")

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

    # ---- one LSN -------------------------------------------------------------------------

    @contextmanager
    def _exported(self, attempt: int) -> Iterator[SlotCreated]:
        """Take a snapshot. Its slot, which holds the source's WAL, ends with the block."""
        subscription = self._subscription
        # Slots are dropped some moments after their sessions, so no name is used twice.
        slot = (
            f"wal2lake_verify_{self._node.catalog.system_identifier}"
            f"_{subscription.oid}_{self._caller.pid}_{attempt}"
        )
        with connect_publisher(
            self._node,
            subscription.name,
            subscription.conninfo,
            check=self._caller.check,
            must_use_password=self._must_use_password,
        ) as exporter:
            with nudged(
                subscription.conninfo,
                subscription.name,
                must_use_password=self._must_use_password,
            ):
                created = Publisher(exporter).create_slot(
                    slot, temporary=True, snapshot="export"
                )
            yield created

    def _import(self, snapshot: str) -> Session:
        subscription = self._subscription
        wait_ms = self._node.settings.subscription.max_lock_wait_ms or LOCK_TIMEOUT_MS
        session = connect_ordinary(
            self._node,
            subscription.name,
            subscription.conninfo,
            _ANSWER_SECONDS + wait_ms / 1000,
            check=self._caller.check,
            must_use_password=self._must_use_password,
        )
        try:
            import_snapshot(session, snapshot, wait_ms)
        except BaseException:
            session.close()
            raise
        return session

    # ---- one table -----------------------------------------------------------------------

    def _prove(
        self,
        session: Session,
        rel: SubscriptionRel,
        lsn: Lsn,
        vector: SnapshotVector,
    ) -> TableProof:
        """Compare a table, or say why that is not possible."""
        name = (rel.remote_namespace, rel.remote_name)

        def find() -> RemoteTable | None:
            # Alone, because a description may wait for the lock of its table.
            publications = self._subscription.publications
            return Publisher(session).tables((name,), publications).get(name)

        try:
            table = self._comparable(rel, vector)
            quoted = self._rights.may_quote(table)
            with locked_table(session, find) as remote:
                result = self._compare(session, table, remote, vector, quoted)
        except Wal2LakeError as error:
            return self._not_comparable(rel, self._reason(error))
        if result.is_equal:
            return TableProof(
                self._subscription.name, table.qualified, EQUAL, lsn, result
            )
        detail = described(result)
        if not quoted:
            detail += f"\n{_NOT_NAMED}"
        changed = self._changed_by_policies(rel)
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

    def _comparable(self, rel: SubscriptionRel, vector: SnapshotVector) -> TableDef:
        """Return the table, or raise NotComparable with the reason."""
        table = self._node.catalog.table_by_oid(rel.relid)
        if table is None:
            raise NotComparable("it was dropped here")
        if rel.paused:
            raise NotComparable("it is paused")
        if rel.state is not SyncState.READY or int(rel.relid) not in vector.versions:
            raise NotComparable("its copy is not complete")
        if vector.elsewhere(rel.relid) is not None:
            raise NotComparable("it is not at the position of the other tables")
        if rel.begins is not None:
            raise NotComparable("its rows were not copied (copy_data = false)")
        names = self._node.catalog.sharing(table)
        others = [r for r in self._node.catalog.rels() if r.relid in names]
        if len(others) > 1:
            raise NotComparable("another subscription or table fills it, too")
        if self._subscription.options.get("delete_mode") == "soft":
            raise NotComparable("it keeps deleted rows (delete_mode = soft)")
        return table

    def _compare(
        self,
        session: Session,
        table: TableDef,
        remote: RemoteTable,
        vector: SnapshotVector,
        quoted: bool,
    ) -> Comparison:
        columns = tuple(column.name for column in remote.columns)
        missing = [name for name in columns if table.column(name) is None]
        if missing or not columns:
            raise NotComparable(
                f"column {missing[0]} is not here" if missing else "it has no columns"
            )
        version = vector.versions[int(table.oid)]
        read = PlainRead.of(self._node.tables, table.location, version, columns)
        if read is None:
            raise NotComparable("only Spark can read its files")
        forms = tuple(
            form_of(arrow_from_ddl(field.spark_ddl), column.type_oid, column.typmod)
            for field, column in zip(read.fields, remote.columns, strict=True)
        )
        key = tuple(columns.index(name) for name in remote.key if name in columns)
        if len(key) != len(remote.key):
            key = ()
        statements = TableStatements(_rows(remote), columns, forms, key)
        key_read = None
        if statements.is_ordered:
            first = [columns[key[0]]]
            key_read = PlainRead.of(self._node.tables, table.location, version, first)
        return compare(
            ServerSide(session, statements),
            LakeSide(read, key_read, forms, key, lambda rows: self._caller.check()),
            columns,
            key,
            quoted=quoted,
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


def _rows(remote: RemoteTable) -> str:
    """Return the relation and its row filter, as the publication has them."""
    only = "ONLY " if remote.kind == "r" else ""
    filters = " OR ".join(f"({text})" for text in remote.row_filters)
    return f"{only}{remote.qualified}" + (f" WHERE {filters}" if filters else "")


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
    lines += [str(difference) for difference in result.named]
    lines += [str(block) for block in result.unread[:_MOST_PLACES]]
    return "\n".join(lines)
