"""What Spark and Java say goes with an error to the log, and no further."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from wal2lake.errors import InternalError, UsageError
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.spark.session import SessionOptions

OF_JAVA = (
    "The JVM's own message is above in this log; check spark.driver_memory and the"
    " [spark] settings."
)

START = """
from pathlib import Path
from wal2lake.errors import StorageError
from wal2lake.lake.spark.session import SessionOptions, start_session
try:
    print(start_session(SessionOptions([Path(one) for one in {jars}], Path({place!r}),
        {place!r}, {master!r}, driver_memory={memory!r})).range(7).count())
except StorageError as error:
    print(error.sqlstate, error.message, error.detail, error.original, sep="|")
    print(error.hint)
"""


def test_an_exception_of_java_is_one_error_with_its_words_beside_it(
    spark_session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    java = spark_session.sparkContext._jvm
    assert java is not None
    with pytest.raises(InternalError) as failed, translated():
        java.java.lang.Integer.parseInt("x")
    assert failed.value.describe() == (
        "could not execute query\nHINT:  The server log has the details."
    )
    assert failed.value.original == (
        'java.lang.NumberFormatException: For input string: "x"'
    )
    told = capsys.readouterr()
    assert "NumberFormatException" not in told.out + told.err


def test_no_value_is_in_the_words(spark_session: SparkSession) -> None:
    with pytest.raises(UsageError) as failed, translated():
        spark_session.sql("select to_number('secret', '999')").collect()
    assert failed.value.sqlstate.startswith("22")
    assert "secret" not in f"{failed.value.describe()}{failed.value.original}"


@pytest.mark.parametrize(
    ("java", "master", "memory", "said", "hint"),
    [
        (
            False,
            "local[1]",
            "1g",
            "58000|could not start the Java virtual machine of Spark|None"
            "|PySparkRuntimeError: [JAVA_GATEWAY_EXITED]",
            OF_JAVA,
        ),
        (
            True,
            "local[1]",
            "1k",
            "58000|could not start the Java virtual machine of Spark|None"
            "|PySparkRuntimeError: [JAVA_GATEWAY_EXITED]",
            OF_JAVA,
        ),
        (
            True,
            "local[nonsense]",
            "1g",
            "58000|could not start Spark|None|org.apache.spark.SparkException: ",
            "Check the [spark] settings.",
        ),
    ],
)
def test_a_start_that_fails(
    session_options: SessionOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    java: bool,
    master: str,
    memory: str,
    said: str,
    hint: str,
) -> None:
    """With more memory it starts."""
    if not java:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    jars = [str(one) for one in session_options.jars]

    def start(master: str, memory: str) -> tuple[str, str]:
        code = START.format(
            jars=jars, place=str(tmp_path), master=master, memory=memory
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return done.stdout, done.stderr

    out, words = start(master, memory)
    assert f"\n{said}" in f"\n{out}", words
    assert out.endswith(f"\n{hint}\n")
    if memory == "1k":
        assert "Too small maximum heap" in out
        # Once for all: a session of its own takes long.
        assert start("local[1]", "1g")[0] == "7\n"
