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

START = """
from pathlib import Path
from wal2lake.errors import StorageError
from wal2lake.lake.spark.session import SessionOptions, start_session
try:
    start_session(SessionOptions([Path(one) for one in {jars}], Path({place!r}), {place!r},
        {master!r}))
except StorageError as error:
    print(error.sqlstate, error.message, error.detail, error.original, sep="|")
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
    ("java", "master", "said"),
    [
        (
            False,
            "local[1]",
            "58000|could not start the Java virtual machine of Spark|None"
            "|PySparkRuntimeError: [JAVA_GATEWAY_EXITED]",
        ),
        (
            True,
            "local[nonsense]",
            "58000|could not start Spark|None|org.apache.spark.SparkException: ",
        ),
    ],
)
def test_a_start_that_fails(
    session_options: SessionOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    java: bool,
    master: str,
    said: str,
) -> None:
    if not java:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    jars = [str(one) for one in session_options.jars]
    code = START.format(jars=jars, place=str(tmp_path), master=master)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(said), done.stderr
