"""Checks the Java that Spark will be started with, before the node listens.

Takes the node's environment; raises ConfigurationError with one line that says what to install.
Without the check, each engine would fail at its start and be restarted forever.

Source: Spark's bin/spark-class, which takes JAVA_HOME before PATH.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError, reason_of
from wal2lake.launch.requests import run_program

OLDEST: Final = 17
"""Oldest Java that Spark 4 accepts. A newer Java than 21 is not refused, as Spark may be newer than
this check."""

_TIMEOUT_SECONDS: Final = 60.0
"""Timeout. Java answers in 0.1 seconds, but later on a machine that has just started. Chosen
arbitrarily."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
"""Matches ``version "17.0.15"``; before Java 9 it is ``version "1.8.0_392"``."""

_NEEDED: Final = "Java 17 or 21 is needed"
_REMEDY: Final = "install it, or set JAVA_HOME to where it is"


def check_java(environ: Mapping[str, str]) -> None:
    """Raise ConfigurationError unless Spark would find a Java that is new enough."""
    home = environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    where = f'"{java}"' if home else "java on PATH"
    try:
        done = run_program([java, "-version"], environ, _TIMEOUT_SECONDS)
    except FileNotFoundError:
        place = f'there is no "{java}" (JAVA_HOME)' if home else "none is on PATH"
        raise ConfigurationError(f"{_NEEDED} and {place}: {_REMEDY}") from None
    except OSError as error:
        raise ConfigurationError(
            f"{_NEEDED} and {where} does not run ({reason_of(error)}): {_REMEDY}"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{_NEEDED} and {where} does not answer: {_REMEDY}"
        ) from None
    match = _VERSION.search(done.stderr + done.stdout)
    if done.returncode != 0 or match is None:
        raise ConfigurationError(f"{_NEEDED} and {where} does not run: {_REMEDY}")
    version = int(match[1])
    if version < OLDEST:
        raise ConfigurationError(
            f"{_NEEDED} and {where} is version {version}: {_REMEDY}"
        )
