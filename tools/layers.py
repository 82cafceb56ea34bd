"""Run the layers of tests, and say what they took and which tests needed a second try.

    tools/layers.py [--workers N] LAYER... [-- PYTEST ARGUMENTS]

A layer is a folder of tests/. The layers run in the order given; the first one that fails ends the
run. N processes run a layer's tests, or ``WAITING`` times as many.

Tests wait for threads and processes of a machine that may be busy. A test that fails is shown and
runs once more, with servers and nodes of its own. The run fails if a test fails twice, or if more
than ``MOST_RETRIED`` tests pass at the second try only: a few say something about the machine, many
say something about the change.

The results of each layer are written as JUnit XML to build/tests/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "tests"

WAITING = {"pure": 2}
"""Layers whose tests wait for threads and processes almost as long as they compute: how many of
their processes keep a core busy."""

MOST_RETRIED = 3
"""Tests of a whole run that may pass at the second try only."""

_NO_TESTS = 5
"""pytest's exit code if the folder has no test for this selection."""


@dataclass(slots=True)
class Layer:
    """One layer's run."""

    name: str
    seconds: float = 0.0
    tests: int = 0
    retried: list[str] = field(default_factory=list)
    """Tests that failed at the first try."""
    code: int = 0
    """Exit code of the last try."""

    @property
    def is_good(self) -> bool:
        """True if each test passed in the end."""
        return self.code in (0, _NO_TESTS)


def processes(name: str, workers: int) -> int:
    """The number of processes that run a layer's tests, if ``workers`` run those of most."""
    return workers * WAITING.get(name, 1)


def run_layer(name: str, workers: int, arguments: list[str]) -> Layer:
    """Run one layer, and what failed in it once more."""
    layer = Layer(name)
    began = time.monotonic()
    report = RESULTS / f"{name}.xml"
    layer.code = _pytest(name, workers, report, arguments)
    layer.tests, failed = read_report(report)
    if layer.code == 1:
        print(f"== {name}: what failed, once more by itself", flush=True)
        layer.retried = failed
        again = ["--last-failed", "--last-failed-no-failures", "none", *arguments]
        layer.code = _pytest(name, workers, RESULTS / f"{name}-again.xml", again)
        if layer.code == _NO_TESTS:
            # The tests could not even be collected.
            layer.code = 1
    layer.seconds = time.monotonic() - began
    return layer


def _pytest(name: str, workers: int, report: Path, arguments: list[str]) -> int:
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers)]
    command += ["--dist", "worksteal", f"--junitxml={report}", f"tests/{name}"]
    return subprocess.run([*command, *arguments], cwd=ROOT, check=False).returncode


def read_report(path: Path) -> tuple[int, list[str]]:
    """The number of tests in a JUnit report, and the names of those that failed."""
    if not path.exists():
        return 0, []
    tests: dict[str, bool] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("skipped") is None:
            name = f"{case.get('classname')}::{case.get('name')}"
            is_bad = case.find("failure") is not None or case.find("error") is not None
            # A failed teardown is a second case of the same name.
            tests[name] = tests.get(name, False) or is_bad
    return len(tests), [name for name, is_bad in tests.items() if is_bad]


def summary(layers: list[Layer]) -> str:
    """What the run took, by layer, and the tests that passed at the second try only."""
    lines = [f"{'layer':10} {'tests':>6} {'time':>7} {'retried':>8}"]
    for layer in layers:
        minutes, seconds = divmod(round(layer.seconds), 60)
        lines.append(
            f"{layer.name:10} {layer.tests:6} {minutes:4}:{seconds:02} "
            f"{len(layer.retried):8}"
        )
    retried = [name for layer in layers for name in layer.retried]
    if retried:
        lines.append(f"failed at the first try (at most {MOST_RETRIED} may):")
        lines += [f"  {name}" for name in retried]
    return "\n".join(lines)


def verdict(layers: list[Layer]) -> int:
    """The exit code of the whole run."""
    if not all(layer.is_good for layer in layers):
        return 1
    return int(sum(len(layer.retried) for layer in layers) > MOST_RETRIED)


def main(argv: list[str]) -> int:
    """Run the layers that the command line names."""
    arguments: list[str] = []
    if "--" in argv:
        place = argv.index("--")
        argv, arguments = argv[:place], argv[place + 1 :]
    parser = argparse.ArgumentParser(prog="tools/layers.py")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("layers", nargs="+", metavar="LAYER")
    options = parser.parse_args(argv)
    RESULTS.mkdir(parents=True, exist_ok=True)
    layers: list[Layer] = []
    for name in options.layers:
        print(f"== {name}", flush=True)
        count = processes(name, options.workers)
        layers.append(run_layer(name, count, arguments))
        if not layers[-1].is_good:
            break
    print(summary(layers))
    return verdict(layers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
