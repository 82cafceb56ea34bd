"""An output plugin that lacks required callbacks is refused when it is loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.errors import UsageError
from wal2lake.publish.plugins import loading
from wal2lake.publish.plugins.loading import BUILT_IN, check_callbacks, load_plugin
from wal2lake.publish.plugins.port import Base


def _callback(self: object, *arguments: object) -> None: ...


def _class(*callbacks: str, base: type = Base, **attributes: object) -> type:
    made = dict.fromkeys(callbacks, _callback)
    return type("Plugin", (base,), {**made, **attributes})


REQUIRED = ("begin", "change", "commit")
STREAMS = ("stream_start", "stream_stop", "stream_commit")
PREPARED = ("begin_prepare", "prepare", "commit_prepared", "rollback_prepared")


def _load(monkeypatch: pytest.MonkeyPatch, made: object) -> object:
    def entry_points(group: str) -> list[SimpleNamespace]:
        assert group == loading.GROUP
        return [SimpleNamespace(name="own", load=lambda: made)]

    monkeypatch.setattr(loading, "entry_points", entry_points)
    return load_plugin("own", {"own"})


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        (_class(), "begin, change, commit"),
        (_class("begin", "commit"), "change"),
        (_class("begin", "commit", change=None), "change"),
        (_class(*REQUIRED, streams=True), "stream_start, stream_stop, stream_commit"),
        (
            _class(*REQUIRED, "prepare", two_phase=True),
            "begin_prepare, commit_prepared, rollback_prepared",
        ),
        (
            _class(*REQUIRED, *STREAMS, *PREPARED, streams=True, two_phase=True),
            "stream_prepare",
        ),
        (
            _class(
                *REQUIRED,
                *("startup", "run", "group", "truncate", *STREAMS, *PREPARED),
                *("filter_prepare", "stream_prepare", "message"),
                base=object,
                is_text=True,
                streams=False,
            ),
            "filter_by_origin, shutdown, two_phase",
        ),
    ],
)
def test_all_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, made: type, missing: str
) -> None:
    with pytest.raises(UsageError) as refused:
        _load(monkeypatch, made)
    assert (refused.value.sqlstate, refused.value.message, refused.value.detail) == (
        "55000",
        'output plugin "own" does not have all required callbacks',
        f"Missing: {missing}.",
    )
    assert refused.value.hint == (
        f"Derive its class from {Base.__module__}.{Base.__name__}, and define what is missing."
    )


def test_three_callbacks_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _class(*REQUIRED)
    assert isinstance(_load(monkeypatch, made), made)


def test_what_startup_turns_on_is_checked_too() -> None:
    plugin: Any = _class(*REQUIRED)()
    check_callbacks("own", plugin)
    plugin.streams = True
    with pytest.raises(UsageError, match="does not have all required callbacks"):
        check_callbacks("own", plugin)


def test_one_that_cannot_be_loaded_is_no_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made() -> object:
        raise ImportError("no module named x")

    with pytest.raises(UsageError) as refused:
        _load(monkeypatch, made)
    assert (refused.value.sqlstate, refused.value.message) == (
        "58P01",
        'could not load library "own": no module named x',
    )


def _missing(name: str, plugin: Any) -> str | None:
    try:
        check_callbacks(name, plugin)
    except UsageError as error:
        return error.detail
    return None


@pytest.mark.parametrize("name", BUILT_IN)
def test_our_own_have_all_of_theirs(name: str) -> None:
    plugin = BUILT_IN[name]()
    assert _missing(name, plugin) is None
    plugin.streams = plugin.two_phase = True
    # wal2json neither streams nor tells of what is prepared.
    assert (_missing(name, plugin) is None) == (name != "wal2json")
