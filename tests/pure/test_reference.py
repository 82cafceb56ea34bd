"""Generated pages of docs/reference are what the generator writes; the plugin's example runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.publish.decoding.decoded import DecodedChange, Transaction
from wal2lake.publish.plugins import loading
from wal2lake.publish.plugins.loading import load_plugin
from wal2lake.publish.plugins.port import Context

ROOT = Path(__file__).parents[2]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "reference", ROOT / "tools" / "reference.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = _generator()


@pytest.mark.parametrize("name", REFERENCE.PAGES)
def test_a_committed_page_is_what_the_generator_writes(name: str) -> None:
    committed = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert committed == REFERENCE.render(name), f"run {REFERENCE.COMMAND}"


def test_a_page_that_was_edited_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(REFERENCE, "FOLDER", tmp_path)
    assert REFERENCE.main([]) == 0
    assert REFERENCE.main(["--check"]) == 0
    with (tmp_path / "views.md").open("a") as page:
        page.write("more\n")
    assert REFERENCE.main(["--check"]) == 1
    assert "docs/reference/views.md is out of date" in capsys.readouterr().out


def test_the_example_of_a_plugin_loads_and_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (ROOT / "docs/reference/plugins.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert source is not None
    names: dict[str, Any] = {}
    exec(compile(source[1], "plugins.md", "exec"), names)

    def entry_points(group: str) -> list[SimpleNamespace]:
        assert group == loading.GROUP
        return [SimpleNamespace(name="counter", load=lambda: names["Counter"])]

    monkeypatch.setattr(loading, "entry_points", entry_points)
    plugin = load_plugin("counter", {"counter"})
    written: list[tuple[bytes, Lsn, bool]] = []
    context = Context(
        slot="s",
        plugin="counter",
        write=lambda content, lsn, last: written.append((content, lsn, last)),
        write_frames=lambda frames: None,
        sending=lambda publications, lsn: {},
        table=lambda oid: None,
        origin_number=lambda name: 0,
    )
    relation = Relation(
        relid=Oid(7),
        namespace="public",
        name="orders",
        identity=ReplicaIdentity.DEFAULT,
        columns=(Column("id", Oid(20), -1, True),),
    )
    transaction = Transaction(Xid(5), Lsn(1), Lsn(2), Lsn(3), 0, None, Lsn(0), 2)
    plugin.startup(context, {"prefix": "app"})
    plugin.begin(context, transaction)
    for op in "IU":
        change = DecodedChange(op, Lsn(1), (b"1",), None, False)
        plugin.change(context, transaction, relation, change)
    plugin.commit(context, transaction)
    plugin.shutdown(context)
    assert written == [(b"app public.orders: 2", Lsn(3), True)]


def test_the_modules_of_the_walks_are_there() -> None:
    page = (ROOT / "docs/arch/0_walks.md").read_text(encoding="utf-8")
    named = 0
    for line in page.splitlines():
        folder = Path()
        # A name without a folder is beside the module that is named before it.
        for name in re.findall(r"[a-z_]+(?:/[a-z_]+)*(?:\.py|/(?= ))", line):
            path = Path(name) if "/" in name else folder / name
            folder = path.parent
            assert (ROOT / "src/wal2lake" / path).exists(), f"{path}: {line}"
            named += 1
    assert named > 30
