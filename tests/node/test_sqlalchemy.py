"""SQLAlchemy over asyncpg: tables are made, written and read by its ORM, and reflected. The same
steps at the node and at PostgreSQL must find the same."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql.base import PGInspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
    selectinload,
)
from tests.conftest import Database

from wal2lake.launch.directory.passfile import connection_parameters
from wal2lake.testing.node import Node


class _Base(DeclarativeBase):
    pass


class Parent(_Base):
    """A column of each common type."""

    __tablename__ = "sa_parent"
    id: Mapped[int] = mapped_column(
        sa.BigInteger, primary_key=True, autoincrement=False
    )
    name: Mapped[str] = mapped_column(sa.String(30))
    price: Mapped[Decimal | None] = mapped_column(sa.Numeric(10, 2))
    at: Mapped[dt.datetime | None] = mapped_column(sa.DateTime(timezone=True))
    day: Mapped[dt.date | None]
    code: Mapped[uuid.UUID | None]
    doc: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    numbers: Mapped[list[int] | None] = mapped_column(ARRAY(sa.Integer))
    flag: Mapped[bool | None]
    data: Mapped[bytes | None]
    span: Mapped[dt.timedelta | None]
    children: Mapped[list[Child]] = relationship(
        primaryjoin="foreign(Child.parent_id) == Parent.id",
        order_by="Child.number",
        viewonly=True,
    )


class Child(_Base):
    """A key of two columns."""

    __tablename__ = "sa_child"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(primary_key=True)
    parent_id: Mapped[int] = mapped_column(sa.BigInteger)


def _parent(number: int) -> Parent:
    return Parent(
        id=number,
        name=f"p{number}",
        price=Decimal("1.50") * number,
        at=dt.datetime(2026, 1, number, tzinfo=dt.UTC),
        day=dt.date(2026, 1, number),
        code=uuid.UUID(int=number),
        doc={"k": [number]},
        numbers=[number, 2],
        flag=bool(number % 2),
        data=bytes([number]),
        span=dt.timedelta(days=1, seconds=number),
    )


_COLUMNS = [column.name for column in Parent.__table__.columns]


async def _write_and_read(engine: AsyncEngine) -> list[Any]:
    found: list[Any] = []
    async with AsyncSession(engine) as session:
        session.add_all(map(_parent, (1, 2, 3)))
        session.add_all(
            Child(number=i, kind="x", parent_id=1 + i % 2) for i in range(4)
        )
        await session.commit()
    async with AsyncSession(engine) as session:
        query = sa.select(Parent).options(selectinload(Parent.children))
        for one in await session.scalars(query.order_by(Parent.id)):
            numbers = [child.number for child in one.children]
            found.append([*(getattr(one, name) for name in _COLUMNS), numbers])
        joined = (
            sa.select(Parent.name, sa.func.count(), sa.func.sum(Parent.price))
            .join(Child, Child.parent_id == Parent.id)
            .where(Parent.id.in_([1, 2]))
            .group_by(Parent.name)
            .order_by(Parent.name)
            .limit(5)
            .offset(0)
        )
        found.append(list(map(tuple, await session.execute(joined))))
    async with AsyncSession(engine) as session:
        changed = await session.get_one(Parent, 2)
        changed.name, changed.price = "changed", None
        await session.flush()
        found.append(
            await session.scalar(sa.select(Parent.id).where(Parent.name.like("chan%")))
        )
        raised = (
            sa.update(Parent).where(Parent.price >= 4).values(price=Parent.price + 1)
        )
        gone = sa.delete(Child).where(Child.number.in_([0, 1]))
        for statement in (raised, gone):
            result = await session.execute(statement)
            assert isinstance(result, sa.CursorResult)
            found.append(result.rowcount)
        await session.delete(await session.get_one(Parent, 1))
        session.add(Parent(id=10, name="kept"))
        await session.flush()
        try:
            async with session.begin_nested():
                session.add(Parent(id=11, name="undone"))
                await session.flush()
                raise _ChangedMindError
        except _ChangedMindError:
            await session.commit()
        rows = await session.execute(
            sa.select(Parent.id, Parent.price).order_by(Parent.id)
        )
        found.append(list(map(tuple, rows)))
    return found


class _ChangedMindError(Exception):
    pass


async def _sent_back(engine: AsyncEngine) -> list[str]:
    """Errors, as the driver's classes and texts."""

    async def twice() -> None:
        async with AsyncSession(engine) as session:
            session.add(Parent(id=10, name="twice"))
            await session.commit()

    async def in_read_only() -> None:
        async with engine.connect() as one:
            await one.execution_options(postgresql_readonly=True)
            await one.execute(sa.insert(Child).values(number=1, kind="y", parent_id=1))

    async def no_table() -> None:
        async with engine.connect() as one:
            await one.execute(sa.text("insert into nothing values (:a)"), {"a": 1})

    errors: list[str] = []
    steps: list[Callable[[], Awaitable[None]]] = [twice, in_read_only, no_table]
    for step in steps:
        try:
            await step()
        except DBAPIError as error:
            errors.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return errors


async def _isolated(engine: AsyncEngine, level: str) -> list[Any]:
    with_level = engine.execution_options(isolation_level=level)
    async with with_level.connect() as one:
        shown = await one.scalar(sa.text("show transaction_isolation"))
        return [shown, await one.get_isolation_level()]


def _reflect(connection: sa.Connection) -> list[Any]:
    inspector = sa.inspect(connection)
    assert isinstance(inspector, PGInspector)
    found: list[Any] = [
        inspector.has_table("sa_parent"),
        inspector.has_table("nothing"),
        inspector.has_schema("public"),
        inspector.get_view_names(),
        inspector.get_sequence_names(),
        inspector.get_enums(),
        inspector.default_schema_name,
    ]
    for table in ("sa_parent", "sa_child"):
        columns = inspector.get_columns(table)
        found.append([{**column, "type": repr(column["type"])} for column in columns])
        found += [
            inspector.get_pk_constraint(table),
            inspector.get_indexes(table),
            inspector.get_foreign_keys(table),
            inspector.get_unique_constraints(table),
            inspector.get_check_constraints(table),
            inspector.get_table_comment(table),
            inspector.get_table_options(table),
        ]
    tables = sa.MetaData()
    tables.reflect(connection, only=["sa_parent", "sa_child"])
    found += [repr(table) for table in tables.sorted_tables]
    return found


async def _use(url: sa.URL) -> list[Any]:
    engine = create_async_engine(url)
    async with engine.begin() as one:
        await one.run_sync(_Base.metadata.create_all)
        await one.run_sync(_Base.metadata.create_all)
    found = await _write_and_read(engine)
    found.append(await _sent_back(engine))
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"):
        found.append(await _isolated(engine, level))
    async with engine.connect() as one:
        found += await one.run_sync(_reflect)
    async with engine.begin() as one:
        await one.run_sync(_Base.metadata.drop_all)
        found.append(await one.run_sync(lambda c: sa.inspect(c).has_table("sa_child")))
    await engine.dispose()
    return found


def _url(given: Mapping[str, str | int | None]) -> sa.URL:
    password = None
    if "passfile" in given:
        passfile = Path(str(given["passfile"])).read_text()
        password = passfile.strip().rpartition(":")[2]
    return sa.URL.create(
        "postgresql+asyncpg",
        str(given["user"]),
        password,
        str(given["host"]),
        int(str(given["port"])),
        str(given["dbname"]),
    )


def test_sqlalchemy_finds_what_it_would_in_postgresql(
    node: Node, pg18: Database
) -> None:
    theirs = asyncio.run(_use(_url(conninfo_to_dict(pg18.conninfo()))))
    ours = asyncio.run(_use(_url(connection_parameters(node.directory))))
    assert ours == theirs
