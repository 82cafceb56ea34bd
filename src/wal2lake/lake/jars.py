"""Locates the Java side's prerequisites: a Java runtime, and Delta's jars.

Comes in: where to look (settings, environment). Goes out: paths of verified jars, the path of
``java``. Called by ``spark.session`` and, through ``python -m wal2lake.lake.jars``, by make.

Why this way. Spark's own ``spark.jars.packages`` resolves ranges and transitive dependencies at
each start, trusts every jar that it finds, and adds 35 jars of which Delta on Spark needs two (the
others are for Unity Catalog and the Delta kernel; the test suite runs with just these two), and a
bundle of 640 MB for S3. Here
the list is pinned by checksum, a start with a filled cache uses no network, and a site without a
network names a folder. Apache Ivy downloads the jars: every pyspark wheel contains it and its
default repository is Maven Central, so downloads behave as Spark users know them.

A jar enters the cache under its final name only after its checksum was verified, by an atomic
rename: two processes may fetch at once, and a kill leaves only an unused temporary folder.

Sources: Ivy 2.5 manual ("Standalone usage", "ibiblio resolver"); Delta Lake releases.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from wal2lake.errors import ConfigurationError

SUPPORTED_JAVA = (17, 21)
"""Java versions with which Spark's project tests Spark 4.1."""

DOWNLOAD_TIMEOUT_SECONDS = 900
"""10 MB at 11 kB/s; on a slower network copy the files by hand."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned artifact of a Maven repository."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""
    """Which of the artifact's jars: ``shaded`` for one with all that it needs."""

    @property
    def file_name(self) -> str:
        """The file's name in the repository, and hence in a folder that is filled by hand."""
        end = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{end}.jar"

    def __str__(self) -> str:
        end = f":{self.classifier}" if self.classifier else ""
        return f"{self.group}:{self.artifact}:{self.version}{end}"


DELTA_JARS: tuple[Jar, ...] = (
    Jar(
        "io.delta",
        "delta-spark_4.1_2.13",
        "4.4.0",
        "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    ),
    Jar(
        "io.delta",
        "delta-storage",
        "4.4.0",
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
)


_AWS_SDK: Mapping[str, str] = {
    "annotations": "8cd8bd8afd7eca5a367f69fd87427f6d9f3e7d359962122da24d71f1963f00cd",
    "apache-client": "c96494be30ecac6f0ab7a35fdd91a4c77ca8a5daf62f3d9d84644ef0f0524dc6",
    "arns": "f5a4d1d9b4e4fc63c9bda49bcf1c59d23fd876b276c6b43aaca12969337303a6",
    "auth": "4d8143b6198dc7a530c2ccdd813129c132b96736086c0d4fea85480b9bdbc5fe",
    "aws-core": "eb560c064fbaac7e2e7f4a77ac343d3083bea0d7f6e2c69ba022d3f3e859be90",
    "aws-query-protocol": "1b117672963ee5059c45f2aadb110f191b578d108d8f08d7c7a59e6c0b098a8e",
    "aws-xml-protocol": "daf87b429373ad586d165003b5b1d4fe498c6472eb65ec9a9e2aa7d56f3917dd",
    "checksums": "bca99ff25c9b917d6be03e5dce78ad5328e7dca485e96024fa8476e4192a800a",
    "checksums-spi": "21193b9b648843dcaff493f0dd80abab9ee6871b203b9218120554698d8f7b8a",
    "crt-core": "4e1f33de21b688695fec91b977ddfa99e9d376edcbad06a62b0c138c60b37de4",
    "endpoints-spi": "e54f246c668d70b55cffe0c8fad18d4465e74e22db75139918bd30610093d1e6",
    "http-auth": "d8aa3bd376aaec7196396e65fe8755f1fdd169e51357f8128ecdc7d23a687450",
    "http-auth-aws": "7ae124e81ac0c2860bb61fdde34a388dbe823fef8509dd46a6bec805ada90308",
    "http-auth-aws-eventstream": "565a4aacce955c5ffaed551f6faaaa958e9e92b2f8514c8482f664edb2bab576",
    "http-auth-spi": "7a2168c5a7baa856d7ae9f9c4f7522d2db9f1361108c38f5b6ece66f249e6a2d",
    "http-client-spi": "8ea61ce3b527779fbfe119e0775c4b7cfdf274a979b1e50596a634685a5b6542",
    "identity-spi": "85104635abf9e5c044aaf7f8951b63efc2ef82051b5ee303571ee2e1fd8b46d0",
    "json-utils": "2652cdb3668311bcff6e643c8612b9fea266423ae1ce33743c84dd7f77904311",
    "metrics-spi": "1db2e3da338148ee40a716e1733c9a5b99e9e6daa4db3aa8bd7e718adafa2510",
    "netty-nio-client": "07238668c9cf54531ee269fd6e2a1e2650fb75d6774d401f406c2a14f26af654",
    "profiles": "fef84619d101838ba45f48d0caddb09a85d9ed8bf869095bd7d2064796856cf7",
    "protocol-core": "7b32e41a3743b422d2edec1670f60b4c1e512fcd5ab7a53fef20742d6b9104d1",
    "regions": "5ee0e26277c679ffa70d83923b0d5f77a53066ecde8610f28be1856947d60eaf",
    "retries": "ca3752ba31399721980c6398992921ff5aa164e084b4c14484333df58c76a353",
    "retries-spi": "a4218ea742fc9e07a620629d7a258bfd92b8ea3ef75f1b99193d0898ca3efe99",
    "s3": "abaedea7e68063e9c4ab090f80d14b9884c57b50953bfe6e5acaa23025609efa",
    "s3-transfer-manager": "0c9e654637247187a7e2494eb7a8799477a772a7d554cd3ae787cd3e3bae3c55",
    "sdk-core": "ea8e9856569f85075a8a806d0481c4bd848c98b24fd6d706fc0b5883fc4604dc",
    "sts": "6495d0457f4e4c3724d8c9c5fe4f6f98c9530a22f92449c4cca5fd03622e4edb",
    "third-party-jackson-core": "eaece3eb60beb8ec09d8a4f48d5bff4110010b03cc23688bdcf2af2eb075cac6",
    "utils": "f150a38f2fec14ced2de6459bfe804f647c88baa573b218646ef89b436a29d42",
}
"""Modules of AWS's SDK 2.29.52, with which Hadoop 3.4.2 was made, and their checksums."""

S3_JARS: tuple[Jar, ...] = (
    Jar(
        "org.apache.hadoop",
        "hadoop-aws",
        "3.4.2",
        "d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9",
    ),
    Jar(
        "software.amazon.eventstream",
        "eventstream",
        "1.0.1",
        "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
    ),
    Jar(
        "org.reactivestreams",
        "reactive-streams",
        "1.0.4",
        "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
    ),
    *(
        Jar("software.amazon.awssdk", name, "2.29.52", sha256)
        for name, sha256 in _AWS_SDK.items()
    ),
)
"""Jars with which Spark reads S3, 10 MB: Hadoop's connector, and the modules of AWS's SDK that the
connector uses, in place of the SDK's bundle of all modules (640 MB). Netty and Apache's HTTP client
are among Spark's own jars."""


AZURE_JARS: tuple[Jar, ...] = (
    Jar(
        "org.apache.hadoop",
        "hadoop-azure",
        "3.4.2",
        "f02ab756037abaecc45ea1869144ad3a69e25ccd84062bc37805837ca254e21c",
    ),
)
"""The jar with which Spark reads Azure, 1 MB: Hadoop's connector. What it needs for ``abfss:`` is
among Spark's own jars."""


GOOGLE_JARS: tuple[Jar, ...] = (
    Jar(
        "com.google.cloud.bigdataoss",
        "gcs-connector",
        "4.0.4",
        "dfb5832738686436e597026a8e4bab01aa22e75ebfb15d37d096981f6599d73c",
        "shaded",
    ),
)
"""The jar with which Spark reads Google Cloud Storage, 41 MB: Google's connector with all that it
needs under names of its own. Spark has other versions of most of that."""


@dataclass(frozen=True, slots=True)
class JarSource:
    """Places that jars come from."""

    cache: Path
    """Directory that is filled from ``repository`` if a jar is missing."""
    folder: Path | None = None
    """If set, jars are taken from here and nothing is ever downloaded."""
    repository: str | None = None
    """URL of a Maven repository (a mirror); None: Maven Central."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> JarSource:
        """Read WAL2LAKE_JAR_CACHE, WAL2LAKE_JARS_DIR, WAL2LAKE_MAVEN_REPOSITORY.

        An empty variable counts as unset.
        """
        cache = environment.get("WAL2LAKE_JAR_CACHE")
        folder = environment.get("WAL2LAKE_JARS_DIR")
        if not cache:
            home = environment.get("XDG_CACHE_HOME")
            base = Path(home) if home else Path("~/.cache").expanduser()
            cache = str(base / "wal2lake" / "jars")
        return cls(
            cache=Path(cache).expanduser(),
            folder=Path(folder).expanduser() if folder else None,
            repository=environment.get("WAL2LAKE_MAVEN_REPOSITORY") or None,
        )


def locate_jars(
    source: JarSource,
    environment: Mapping[str, str],
    jars: Sequence[Jar] = DELTA_JARS,
    *,
    on_download: Callable[[Sequence[Jar]], None] = lambda missing: None,
) -> tuple[Path, ...]:
    """Return verified paths in the order of ``jars``; download missing jars, which may take
    minutes and is announced to ``on_download``.

    Raises ConfigurationError that names jar, place and remedy.
    """
    if source.folder is not None:
        return tuple(_from_folder(jar, source.folder) for jar in jars)
    missing = [
        jar for jar in jars if _digest(source.cache / jar.file_name) != jar.sha256
    ]
    if missing:
        on_download(missing)
        _download(missing, source, environment)
    return tuple(source.cache / jar.file_name for jar in jars)


def find_java(environment: Mapping[str, str]) -> Path:
    """Return the ``java`` that Spark's scripts will start, after checking its version."""
    home = environment.get("JAVA_HOME")
    versions = " or ".join(str(v) for v in SUPPORTED_JAVA)
    remedy = (
        f"Install Java {SUPPORTED_JAVA[0]} (Debian and Ubuntu: "
        f"apt-get install openjdk-{SUPPORTED_JAVA[0]}-jre-headless) or set JAVA_HOME."
    )
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise ConfigurationError(
                f"no Java at JAVA_HOME ({home}); Java {versions} is needed",
                hint=remedy,
            )
    else:
        path = shutil.which("java", path=environment.get("PATH"))
        if path is None:
            raise ConfigurationError(
                f"Java {versions} is needed and there is none on PATH", hint=remedy
            )
        java = Path(path)
    version = _java_version(java, environment)
    if version not in SUPPORTED_JAVA:
        shown = "an unknown version" if version is None else f"version {version}"
        raise ConfigurationError(
            f"Java {versions} is needed, but {java} is {shown}", hint=remedy
        )
    return java


def _java_version(java: Path, environment: Mapping[str, str]) -> int | None:
    try:
        answer = subprocess.run(
            [java, "-version"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # openjdk version "17.0.15" 2025-04-15; Java 8 and older print "1.8.0_402".
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _from_folder(jar: Jar, folder: Path) -> Path:
    path = folder / jar.file_name
    digest = _digest(path)
    if digest == jar.sha256:
        return path
    if digest is None:
        problem = f"jar {jar} is not in the folder {folder}"
        remedy = f"Copy {jar.file_name} into it"
    else:
        problem = f"{path} is not the expected jar {jar} (SHA-256 differs)"
        remedy = f"Replace it by the original {jar.file_name}"
    raise ConfigurationError(
        problem,
        hint=f"{remedy}, or unset spark.jars_dir (WAL2LAKE_JARS_DIR) to download it.",
    )


def _download(
    jars: Sequence[Jar], source: JarSource, environment: Mapping[str, str]
) -> None:
    java = find_java(environment)
    try:
        source.cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=source.cache))
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the jar cache {source.cache}: {error.strerror}",
            hint="Set WAL2LAKE_JAR_CACHE to a writable directory.",
        ) from error
    try:
        output = _run_ivy(java, jars, source, work, environment)
        failed = [j for j in jars if not (work / "jars" / j.file_name).exists()]
        if failed:
            # Ivy retrieves no jar if one is missing: report that one.
            blamed = next((j for j in failed if _reason(output, j)), failed[0])
            reason = _reason(output, blamed) or _last_line(output)
            raise _download_failed(blamed, source, reason)
        for jar in jars:
            fetched = work / "jars" / jar.file_name
            digest = _digest(fetched)
            if digest != jar.sha256:
                raise _download_failed(jar, source, "the SHA-256 checksum differs")
            fetched.chmod(0o644)
            fetched.rename(source.cache / jar.file_name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_ivy(
    java: Path,
    jars: Sequence[Jar],
    source: JarSource,
    work: Path,
    environment: Mapping[str, str],
) -> str:
    """Let Ivy retrieve into ``work/jars``; return its output."""
    module = work / "ivy.xml"
    module.write_text(_ivy_module(jars), encoding="utf-8")
    command = [str(java), *_proxy_options(environment), "-jar", str(_ivy_jar())]
    if source.repository:
        settings = work / "ivysettings.xml"
        settings.write_text(_ivy_settings(source.repository), encoding="utf-8")
        command += ["-settings", str(settings)]
    command += ["-ivy", str(module), "-cache", str(work / "cache")]
    command += ["-m2compatible", "-confs", "default", "-types", "jar"]
    command += ["-retrieve", str(work / "jars" / _PATTERN)]
    try:
        answer = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"(no answer within {DOWNLOAD_TIMEOUT_SECONDS} seconds)"
    return answer.stdout


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    candidates = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not candidates:
        raise ConfigurationError(
            "the installed pyspark carries no Apache Ivy to download jars with",
            hint="Reinstall pyspark, or fill a folder by hand and set"
            " WAL2LAKE_JARS_DIR.",
        )
    return candidates[-1]


_PATTERN: Final = "[artifact]-[revision](-[classifier]).[ext]"
"""Ivy's pattern of ``Jar.file_name``."""


def _ivy_module(jars: Sequence[Jar]) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)}"
        f' rev={quoteattr(jar.version)} conf="default->master" transitive="false">'
        f"{_ivy_artifact(jar)}</dependency>"
        for jar in jars
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="wal2lake" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _ivy_artifact(jar: Jar) -> str:
    if not jar.classifier:
        return ""
    return (
        f'<artifact name={quoteattr(jar.artifact)} type="jar" ext="jar"'
        f" m:classifier={quoteattr(jar.classifier)}/>"
    )


def _ivy_settings(repository: str) -> str:
    root = repository.rstrip("/") + "/"
    return (
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root={quoteattr(root)}/>'
        "</resolvers></ivysettings>"
    )


def _proxy_options(environment: Mapping[str, str]) -> list[str]:
    """Return Java's options for the proxy variables, which Java does not read itself."""
    options = []
    for scheme in ("http", "https"):
        name = f"{scheme}_proxy"
        url = environment.get(name) or environment.get(name.upper())
        if not url:
            continue
        parts = urlsplit(url if "//" in url else f"//{url}")
        if parts.hostname:
            options.append(f"-D{scheme}.proxyHost={parts.hostname}")
            options.append(f"-D{scheme}.proxyPort={parts.port or 80}")
    return options


def _reason(output: str, jar: Jar) -> str | None:
    """Return the line of Ivy's output that has the reason."""
    for pattern in (
        rf"Server access error at url \S*{re.escape(jar.artifact)}\S* \((.*)\)",
        r"\((no answer within .*)\)",
        rf"\[(NOT FOUND)\s*\] {re.escape(jar.group)}#{re.escape(jar.artifact)};",
        rf"(?:::|\[FAILED\s*\])\s*{re.escape(jar.group)}#{re.escape(jar.artifact)}"
        rf";{re.escape(jar.version)}\S*: (.*\S)",
    ):
        match = re.search(pattern, output)
        if match:
            return match[1].lower() if match[1].isupper() else match[1]
    return None


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"


def _download_failed(jar: Jar, source: JarSource, reason: str) -> ConfigurationError:
    place = source.repository or "Maven Central"
    return ConfigurationError(
        f"could not download jar {jar} from {place}: {reason}",
        hint="Try again with a network, set WAL2LAKE_MAVEN_REPOSITORY to a mirror, or"
        f" put {jar.file_name} into a folder and set WAL2LAKE_JARS_DIR to it.",
    )


def main() -> int:
    """Fetch the jars for make, those for object stores, too; one line for each, or one error."""
    jars = (*DELTA_JARS, *S3_JARS, *AZURE_JARS, *GOOGLE_JARS)
    try:
        find_java(os.environ)
        paths = locate_jars(JarSource.from_environment(os.environ), os.environ, jars)
    except ConfigurationError as error:
        print(f"ERROR:  {error.describe()}", file=sys.stderr)
        return 1
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
