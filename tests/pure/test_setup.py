"""tools/setup: a missing prerequisite is one line with the command that mends it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JAVA = "echo 'openjdk version \"{}.0.1\" 2024-01-16' >&2"
DEBIANS_PYTHON = """case "$*" in
    *sys.executable*) echo "$0" ;;
    *"print("*) echo python3.12 ;;
    "-m venv"*) exit 1 ;;
esac"""
OLD_PYTHON = (
    "exit 1"  # What a Python before 3.11 answers to the question for its version.
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with tools/setup alone, and a bin/ with nothing that it looks for."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "tools" / "setup", tmp_path / "tools" / "setup")
    for name in ("bash", "env", "sed", "head", "grep", "uname", "dirname", "rm"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def program(checkout: Path, name: str, script: str) -> None:
    path = checkout / "bin" / name
    path.write_text(f"#!/usr/bin/env bash\n{script}\n")
    path.chmod(0o755)


def refusal(checkout: Path, *, says: str = "", **environ: str) -> str:
    """The error of a tools/setup that ends without having made anything."""
    done = subprocess.run(
        [checkout / "tools" / "setup"],
        env={"PATH": str(checkout / "bin"), "LC_ALL": "C", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1 and done.stdout == says
    assert not (checkout / ".venv").exists()
    (line,) = done.stderr.splitlines()
    return line


def test_no_java(checkout: Path) -> None:
    told = refusal(checkout)
    assert told.startswith("error: Java 17 or 21 is needed and java does not run")
    assert "install it with: " in told and "JAVA_HOME" in told


def test_no_java_where_java_home_says(checkout: Path) -> None:
    program(checkout, "java", JAVA.format(17))
    told = refusal(checkout, JAVA_HOME=str(checkout / "nothing"))
    assert f"{checkout}/nothing/bin/java does not run" in told


@pytest.mark.parametrize("version", ["1.8", "11", "24"])
def test_another_java(checkout: Path, version: str) -> None:
    program(checkout, "java", JAVA.format(version))
    told = refusal(checkout)
    assert (
        f"java is version {version.split('.', maxsplit=1)[0]}; install it with: "
        in told
    )


def test_no_python_of_today(checkout: Path) -> None:
    program(checkout, "java", JAVA.format(21))
    told = refusal(checkout)
    assert told.startswith("error: Python 3.11 or later is needed; install it with: ")
    program(checkout, "python3", OLD_PYTHON)
    assert refusal(checkout) == told


def test_the_python_that_was_asked_for_is_too_old(checkout: Path) -> None:
    program(checkout, "java", JAVA.format(17))
    program(checkout, "python3.9", OLD_PYTHON)
    told = refusal(checkout, PYTHON="python3.9")
    assert told == (
        "error: PYTHON=python3.9 is not Python 3.11 or later; to let make look for one:"
        " unset PYTHON"
    )


def test_a_python_without_venv(checkout: Path) -> None:
    """Debian's, without its package python3.x-venv."""
    program(checkout, "java", JAVA.format(17))
    program(checkout, "python3", DEBIANS_PYTHON)
    assert refusal(checkout, says=f"making .venv with {checkout}/bin/python3\n") == (
        f"error: {checkout}/bin/python3 cannot make virtual environments; install what is"
        " missing with: apt-get install python3.12-venv"
    )
