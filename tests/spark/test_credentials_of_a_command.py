"""Spark reads S3 with the credentials of a command, which has the operator's environment."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.objectstores import s3_server

from wal2lake.lake.store import store_at

READ = """
import os, sys
from pathlib import Path
from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.lake.spark import access_to
from wal2lake.lake.spark.session import SessionOptions, start_session, stop_session
from wal2lake.lake.store import StoreOptions
work, endpoint, command, url = sys.argv[1:]
options = StoreOptions((("endpoint", endpoint),), credentials_command=command)
access = access_to(url, options, os.environ, Path(work) / "the ;store")
source = JarSource.from_environment(os.environ)
spark = start_session(SessionOptions(
    jars=locate_jars(source, os.environ),
    added_jars=locate_jars(source, os.environ, access.jars),
    local_dir=Path(work) / "spark",
    warehouse=work,
    master="local[1]",
    environment=access.environment,
    java_options=access.java_options,
    extra=access.settings,
))
print(spark.read.parquet(url).collect()[0].n)
stop_session(spark)
"""


@pytest.mark.slow
def test_spark_reads_with_the_credentials_of_a_command(tmp_path: Path) -> None:
    printed = '{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret"}'
    (tmp_path / "printed").write_text(printed)
    seen = tmp_path / "seen"
    command = (
        f"echo ${{AWS_PROFILE-none}} ${{AWS_CONFIG_FILE-none}} >> {seen} ; # a comment\n"
        f"cat {tmp_path}/printed"
    )
    content = io.BytesIO()
    pq.write_table(pa.table({"n": [7]}), content)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    with s3_server() as server:
        store = store_at(f"{server.url}/w", server.options())
        assert store is not None
        store.put("f.parquet", content.getvalue())
        done = subprocess.run(
            [
                *(sys.executable, "-c", READ, str(tmp_path)),
                *(f"http://127.0.0.1:{server.port}", command, f"{server.url}/w"),
            ],
            env={**environment, "AWS_PROFILE": "of-the-operator"},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "7"
    assert set(seen.read_text().splitlines()) == {"of-the-operator none"}
