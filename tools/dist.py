"""Build the sdist and the wheel, and prove the wheel in a fresh environment without a checkout.

    python tools/dist.py

The wheel has every file of src/wal2lake, those of the page among them. It is installed into a new
virtual environment, with the versions of requirements.lock, and its programs run in an empty
directory with nothing of this checkout in reach:

The wheel brings deploy/, too, which pip puts below share/wal2lake of the environment.

1. ``wal2lake demo`` starts a PostgreSQL, makes a node, subscribes, kills the node, and compares all
   rows;
2. ``wal2lake start`` without Java on PATH ends with exit status 1 and one line that names the
   versions of Java that work.

The exit code is 0 if all of this holds. The packages are in dist/ then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LOCK = ROOT / "requirements.lock"

DEMO_SECONDS = 10
"""Of the demo's workload: what is proven here is the package, not the product."""


def build() -> Path:
    """Make dist/ anew; returns the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST)], ROOT)
    (wheel,) = DIST.glob("*.whl")
    (_sdist,) = DIST.glob("*.tar.gz")
    return wheel


def missing_files(wheel: Path) -> list[str]:
    """Files of the package, and of deploy/, that the wheel or the sdist does not have."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    data = wheel.name.split("-py3", 1)[0] + ".data/data/share/wal2lake"
    missing = _files(ROOT / "src", "wal2lake") - packed
    missing |= {f"{data}/{name}" for name in _files(ROOT, "deploy")} - packed
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as source:
        unpacked = {name.partition("/")[2] for name in source.getnames()}
    # What the image is built from.
    return sorted(missing | ({*_files(ROOT, "deploy"), LOCK.name} - unpacked))


def _files(base: Path, folder: str) -> set[str]:
    files = (p for p in (base / folder).rglob("*") if p.is_file())
    return {p.relative_to(base).as_posix() for p in files if p.suffix != ".pyc"}


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a new environment below ``folder``; returns its bin/."""
    environment = folder / "environment"
    _run([sys.executable, "-m", "venv", str(environment)], folder)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pip.append("--disable-pip-version-check")
    pins = [
        line
        for line in LOCK.read_text(encoding="utf-8").splitlines()
        if line.startswith(("setuptools==", "wheel=="))
    ]
    # pyspark comes as a source package: it is built with the locked setuptools.
    _run([*pip, *pins], folder)
    options = ["--use-pep517", "--no-build-isolation", "--constraint", str(LOCK)]
    _run([*pip, *options, f"{wheel}[demo]"], folder)
    return environment / "bin"


def replicates(programs: Path, folder: Path) -> bool:
    """True if the installed demo finds every row equal."""
    command = [str(programs / "wal2lake"), "demo", "--seconds", str(DEMO_SECONDS)]
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    done = subprocess.run(command, cwd=folder, env=_bare(path), check=False)
    return done.returncode == 0


def asks_for_java(programs: Path, folder: Path) -> bool:
    """True if the installed node says which Java it needs, if there is none."""
    node = folder / "node"
    program, path = str(programs / "wal2lake"), str(programs)
    without_java = _bare(path, java=False)
    _run([program, "init", "-D", str(node), "-U", "me"], folder, without_java)
    done = subprocess.run(
        [program, "start", "-D", str(node)],
        cwd=folder,
        env=without_java,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    output = (done.stdout + done.stderr).strip()
    print(f"without Java: exit status {done.returncode}: {output}")
    is_one_line = len(output.splitlines()) == 1
    return done.returncode == 1 and is_one_line and "Java 17 or 21" in output


def _bare(path: str, *, java: bool = True) -> dict[str, str]:
    """An environment with nothing of this checkout in it, with Java only if ``java``."""
    kept = ["HOME", "LANG", "TMPDIR", "USER", *(["JAVA_HOME"] if java else [])]
    return {n: os.environ[n] for n in kept if n in os.environ} | {"PATH": path}


def _run(
    command: list[str], folder: Path, environment: dict[str, str] | None = None
) -> None:
    if environment is None:
        # A module path of the caller's would hide what the environment lacks.
        environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    subprocess.run(command, cwd=folder, env=environment, check=True)


def main() -> int:
    """Build and prove."""
    wheel = build()
    if missing := missing_files(wheel):
        print(f"the wheel lacks {', '.join(missing)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="wal2lake-dist-") as name:
        folder = Path(name)
        programs = install(wheel, folder)
        if not replicates(programs, folder):
            print("the installed demo failed", file=sys.stderr)
            return 1
        if not asks_for_java(programs, folder):
            print("the installed node does not ask for Java", file=sys.stderr)
            return 1
    print(f"built and proven: {', '.join(sorted(p.name for p in DIST.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
