"""A type is dropped at the publisher while rows of it, in binary form, wait in the log. The next
receiver recorded the types of that moment alone, and nobody could decode those rows any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import Catalog, Subscription
from wal2lake.model import Lsn, Oid
from wal2lake.pgtypes import (
    RemoteType,
    check_decoder,
    remote_types_from_json,
    remote_types_to_json,
)
from wal2lake.receive import remotetypes
from wal2lake.receive.remotetypes import RemoteTypesKeeper

OLD = RemoteType(Oid(16400), "mood_old", "e", True, Oid(0), ())
NEW = RemoteType(Oid(16500), "mood", "e", True, Oid(0), ())


def test_it_stays_known_but_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog.create(tmp_path / "catalog", "boss", None)
    subscription = Subscription(
        Oid(1), "s", Oid(10), True, "host=x", "s", ("p",), options={"binary": "true"}
    )
    catalog.create_subscription(subscription, [])
    catalog.set_options(Oid(1), {"remote_types": remote_types_to_json((OLD,))})
    monkeypatch.setattr(
        remotetypes,
        "published_formats",
        lambda *_: SimpleNamespace(types=(NEW,), obstacles=()),
    )
    now = catalog.subscription(Oid(1))
    assert now is not None
    keeper = RemoteTypesKeeper(catalog, now)
    unused: Any = None
    assert keeper.learn(unused, received=Lsn(5), position=Lsn(9))

    after = catalog.subscription(Oid(1))
    assert after is not None
    known = remote_types_from_json(after.remote_types)
    for one in (OLD, NEW):
        check_decoder(one.oid, known)
    assert set(keeper._known) == {NEW.oid}
    assert replace(now, options={}) == replace(after, options={})
