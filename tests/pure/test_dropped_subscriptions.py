"""What a dropped subscription leaves behind: steps after a commit, and files after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.commands import SUB, World

from wal2lake.catalog.mapped.progress import receiver_name
from wal2lake.commands.subscription import remove_orphans
from wal2lake.local.node import EngineParts
from wal2lake.local.transaction.definitions import TransactionDefinitions
from wal2lake.model import Oid
from wal2lake.observe.telemetry import telemetry_folder, telemetry_path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_step_that_fails_after_a_commit_is_no_error_of_the_commit(
    world: World,
) -> None:
    done: list[str] = []

    def fails(_: EngineParts) -> None:
        raise PermissionError("run/sub-20000.progress")

    definitions = TransactionDefinitions(world.node)
    definitions.catalog.update_subscription(SUB, slot_name=None)
    definitions.block.afterwards += [fails, lambda _: done.append("the next step")]
    definitions.commit(lambda: None, None)
    assert done == ["the next step"]
    assert world.now.slot_name is None


def test_only_what_a_dropped_subscription_has_left_is_removed(world: World) -> None:
    logs, run = world.node.settings.log_directory, world.node.settings.run_directory
    kept = [
        logs / str(int(SUB)),
        logs / f"{int(SUB)}.old",
        logs / "publish",
        logs / "spark",
        logs / "20001x",
        logs / "020001",
        logs / "20001.older",
    ]
    gone = [logs / "20001", logs / "20002.old"]
    for path in kept + gone:
        path.mkdir(parents=True)
        (path / "segment").touch()
    run.mkdir(exist_ok=True)
    files = [
        logs / "20009",
        run / f"sub-{int(SUB)}.progress",
        run / "sub-20001.progress.bak",
        run / "sub-x.progress",
        run / f"sub-{int(SUB)}.times",
        telemetry_path(run, receiver_name(SUB)),
        telemetry_path(run, "engine"),
    ]
    left = [
        run / "sub-20001.progress",
        run / "sub-20001.times",
        telemetry_path(run, receiver_name(Oid(20001))),
    ]
    telemetry_folder(run).mkdir()
    for path in [*files, *left]:
        path.touch()
    (logs / "20010").symlink_to(logs / "publish")
    remove_orphans(world.node)
    assert [path for path in [*kept, *files, logs / "20010"] if not path.exists()] == []
    assert [path for path in [*gone, *left] if path.exists()] == []
