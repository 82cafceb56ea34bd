"""The files of deploy/ as values, and a container without a container engine.

``instructions`` and ``documents`` read Dockerfile and YAML. ``Container`` runs the image's entry
point as Docker would, with the same commands from the Dockerfile: as process 1 of a namespace of
process ids where that is allowed (Linux, root), else as an ordinary process. The file system and
the network are this machine's. PyYAML comes with MkDocs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from wal2lake.launch.processes import descendants
from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


def instructions(stage: int = -1) -> list[tuple[str, str]]:
    """Return the instructions of one stage of the Dockerfile, each with its arguments on one
    line."""
    lines = [
        line
        for line in DOCKERFILE.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    stages: list[list[tuple[str, str]]] = []
    for line in joined.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest))
    return stages[stage]


def argument(word: str) -> str:
    """Return the arguments of the last stage's only instruction of that name."""
    [found] = [rest for name, rest in instructions() if name == word]
    return found


def command(text: str) -> list[str]:
    """Return the words of an instruction in JSON form, its options left out."""
    words = json.loads(text[text.index("[") :])
    assert all(isinstance(word, str) for word in words)
    return list(words)


def documents(path: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML file below deploy/."""
    text = (DEPLOY / path).read_text(encoding="utf-8")
    return [document for document in yaml.safe_load_all(text) if document is not None]


def own_namespace() -> list[str]:
    """Return a command before another that makes it process 1; empty if that is not allowed."""
    prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return []
    done = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return [shutil.which("unshare") or "", *prefix[1:]] if done.returncode == 0 else []


class Container:
    """One container with a volume. ``close`` kills what runs; the volume stays."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """``environ`` adds to the variables; the node is in ``folder``/volume/node."""
        self.volume = folder / "volume"
        self.volume.mkdir(parents=True)
        self.directory = self.volume / "node"
        self.log = folder / "log"
        self._namespace = own_namespace()
        programs = folder / "bin"
        programs.mkdir()
        # Not that of the environment, which may be missing or another checkout's.
        program = programs / "wal2lake"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m wal2lake.cli "$@"\n')
        program.chmod(0o755)
        path = [programs, DEPLOY / "docker", Path(sys.executable).parent]
        self._environ = {
            **os.environ,
            "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
            "WAL2LAKE_DIRECTORY": str(self.directory),
            "WAL2LAKE_SETTINGS_FILE": str(folder / "none.toml"),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_namespaced(self) -> bool:
        """Whether the entry point is process 1."""
        return bool(self._namespace)

    @property
    def is_running(self) -> bool:
        """Whether the entry point runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def first_pid(self) -> int:
        """The entry point's process, as seen from outside."""
        assert self._process is not None
        if not self._namespace:
            return self._process.pid
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(wait_until(lambda: children.read_text().split())[0])

    def start(self, *arguments: str) -> None:
        """Run ENTRYPOINT with CMD, or with ``arguments`` in its place."""
        [program] = command(argument("ENTRYPOINT"))
        words = [*self._namespace, str(DEPLOY / "docker" / program)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                tied(*words, *(arguments or command(argument("CMD")))),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                start_new_session=True,
            )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as ``docker exec`` does."""
        enter = []
        if self._namespace and self.is_running:
            enter = ["nsenter", "--pid", "--mount", "--target", str(self.first_pid)]
        return subprocess.run(
            [*enter, *words],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def is_healthy(self) -> bool:
        """Run HEALTHCHECK's command."""
        return self.run(*command(argument("HEALTHCHECK"))).returncode == 0

    def is_serving(self) -> bool:
        """Run the command of Kubernetes's readiness probe."""
        return self.run("healthcheck", "serving").returncode == 0

    def stop(self) -> int:
        """Send STOPSIGNAL to the first process; returns the exit code."""
        return self.end(signal.Signals[argument("STOPSIGNAL")])

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the first process; returns the exit code."""
        assert self._process is not None
        os.kill(self.first_pid, number)
        return self._process.wait(90)

    def log_text(self) -> str:
        """Return what all starts have printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        """Kill what runs."""
        if self._process is not None and self._process.poll() is None:
            for pid in [self._process.pid, *descendants(self._process.pid)]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait(30)
