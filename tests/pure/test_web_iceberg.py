"""The node as an Iceberg REST catalog: pyiceberg and plain requests at the web process."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.response import ErrorResponse
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    RESTError,
)
from pyiceberg.table.metadata import TableMetadataUtil
from tests.fakes.mirrored_table import COLUMNS, MirroredTable
from tests.fakes.mirroring import SUBID, MirroringNode
from tests.fakes.openapi import Schemas
from tests.fakes.web import WebProcess

from wal2lake.catalog import Catalog, Role
from wal2lake.lake.iceberg import IcebergMirror
from wal2lake.model import Acl, Lsn, ObjectKind, Oid
from wal2lake.settings import FILE_NAME
from wal2lake.testing.waits import wait_until
from wal2lake.web.iceberg.answers import CatalogRefusal
from wal2lake.web.iceberg.tokens import TOKEN_SECONDS, Tokens
from wal2lake.wire.scram import create_verifier

pytestmark = pytest.mark.usefixtures("no_fsync")

SPECIFICATION = Schemas(
    json.loads((Path(__file__).parent / "corpus/iceberg/rest.json").read_text())
)
VERIFIER = str(create_verifier("secret", b"salt" * 4, iterations=1))
READER, NOBODY = Oid(30001), Oid(30002)


@dataclass
class Served:
    """A node whose tables are mirrored, and its web process."""

    web: WebProcess
    node: MirroringNode

    def connect(
        self, warehouse: str = "latest", name: str = "reader", password: str = "secret"
    ) -> RestCatalog:
        """Return pyiceberg's catalog."""
        return RestCatalog(
            "node",
            uri=self.web.urls[0],
            warehouse=warehouse,
            credential=f"{name}:{password}",
            **{"oauth2-server-uri": f"{self.web.urls[0]}v1/oauth/tokens"},
        )

    def token(self, name: str = "reader") -> str:
        """Log in; return a bearer token."""
        status, answer = self.form(
            grant_type="client_credentials", client_id=name, client_secret="secret"
        )
        assert status == 200, answer
        return str(answer["access_token"])

    def form(
        self, headers: Mapping[str, str] | None = None, **fields: str
    ) -> tuple[int, Any]:
        """Ask for a token."""
        body = urllib.parse.urlencode(fields).encode()
        return self.ask("oauth/tokens", "POST", dict(headers or {}), body)

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, Any]:
        """Return status and value of one request; None without a body."""
        status, _, answer = self.web.get(
            f"/v1/{path}", method=method, headers=headers, body=body
        )
        return status, json.loads(answer) if answer else None

    def read(self, path: str, name: str = "reader", **rest: Any) -> tuple[int, Any]:
        """``ask`` as a role."""
        bearer = {"Authorization": f"Bearer {self.token(name)}"}
        return self.ask(path, headers=bearer, **rest)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    web = WebProcess(tmp_path / "node")
    catalog = Catalog(web.directory / "catalog.sqlite")
    for oid, name in ((READER, "reader"), (NOBODY, "nobody")):
        catalog.create_role(Role(oid, name, superuser=False, password=VERIFIER))
    node = MirroringNode(web.directory, "iceberg", catalog)
    try:
        yield Served(web.start(), node)
        assert "Traceback" not in web.log_text(), web.log_text()
    finally:
        web.close()


def grant(node: MirroringNode, *oids: int) -> None:
    """Let the reader read tables, and no other one."""
    node.catalog.set_access(
        tables={
            table.oid: (
                table.owner,
                Acl.default(ObjectKind.TABLE, table.owner).grant(
                    table.owner, READER, "r", grantable=False
                )
                if table.oid in oids
                else None,
            )
            for table in node.catalog.tables()
        }
    )


def two_tables(node: MirroringNode) -> tuple[MirroredTable, MirroredTable]:
    """Return two tables with one row each, which the reader may read."""
    tables = node.table(1), node.table(2)
    grant(node, 1, 2)
    node.publish(0x100, dict.fromkeys(tables, 1))
    node.worker.round()
    return tables


def add(node: MirroringNode, lsn: int, *tables: MirroredTable, row: int) -> None:
    """Publish one more row in each of some tables, and mirror that."""
    for table in tables:
        table.append({"id": [row], "name": ["x"]})
    node.publish(lsn, {table: table.version for table in tables})
    node.worker.round()


def ids(catalog: RestCatalog, name: str) -> list[int]:
    """Return what a client reads."""
    rows = catalog.load_table(f"public.{name}").scan().to_arrow()
    return sorted(rows["id"].to_pylist())


def test_pyiceberg_reads_the_newest_moment(served: Served) -> None:
    first, second = two_tables(served.node)
    catalog = served.connect()
    assert catalog.list_namespaces() == [("public",)]
    assert catalog.list_tables("public") == [("public", "t1"), ("public", "t2")]
    assert ids(catalog, "t1") == [1]
    add(served.node, 0x200, first, second, row=7)
    assert (ids(catalog, "t1"), ids(catalog, "t2")) == ([1, 7], [2, 7])
    assert catalog.namespace_exists("public") and catalog.table_exists("public.t1")
    assert not catalog.table_exists("public.t3")
    assert not catalog.namespace_exists("elsewhere")


def test_a_warehouse_is_a_moment_at_which_all_tables_agree(served: Served) -> None:
    """A table that does not change in a round is at the moment, too."""
    first, second = two_tables(served.node)
    add(served.node, 0x200, first, row=7)
    now = served.connect("now")
    add(served.node, 0x300, second, row=8)
    add(served.node, 0x400, first, second, row=9)
    seen = {
        name: (ids(catalog, "t1"), ids(catalog, "t2"))
        for name in ("lsn-0-100", "lsn-0-1FF", "lsn-0-200", "lsn-0-300", "lsn-0-400")
        for catalog in [served.connect(name)]
    }
    assert seen == {
        "lsn-0-100": ([1], [2]),
        "lsn-0-1FF": ([1], [2]),
        "lsn-0-200": ([1, 7], [2]),
        "lsn-0-300": ([1, 7], [2, 8]),
        "lsn-0-400": ([1, 7, 9], [2, 8, 9]),
    }
    assert (ids(now, "t1"), ids(now, "t2")) == ([1, 7], [2])


def test_a_round_that_is_not_done_is_not_seen(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest moment is the one before, in the table that is done as well."""
    first, second = two_tables(served.node)
    for table in (first, second):
        table.append({"id": [7], "name": ["x"]})
    served.node.publish(0x200, {first: 2, second: 2})
    mirror = IcebergMirror.mirror
    done: list[object] = []

    def mirror_one(self: IcebergMirror, location: str, *rest: Any) -> Any:
        if done:
            # As a kill between two tables.
            raise KeyboardInterrupt
        done.append(mirror(self, location, *rest))
        return done[0]

    monkeypatch.setattr(IcebergMirror, "mirror", mirror_one)
    with pytest.raises(KeyboardInterrupt):
        served.node.worker.round()
    catalog = served.connect()
    assert (ids(catalog, "t1"), ids(catalog, "t2")) == ([1], [2])
    monkeypatch.undo()
    # Another process goes on, with another worker.
    served.node.restart()
    served.node.worker.round()
    assert (ids(catalog, "t1"), ids(catalog, "t2")) == ([1, 7], [2, 7])
    past = served.connect("lsn-0-100")
    assert (ids(past, "t1"), ids(past, "t2")) == ([1], [2])


def test_a_table_that_has_not_followed_is_not_shown(served: Served) -> None:
    first, second = two_tables(served.node)
    first.define((("a", "variant"),))
    second.append({"id": [7], "name": ["x"]})
    served.node.publish(0x200, {first: first.version, second: second.version})
    served.node.worker.round()
    catalog = served.connect()
    assert catalog.list_tables("public") == [("public", "t2")]
    assert ids(catalog, "t2") == [2, 7]
    with pytest.raises(NoSuchTableError, match="has not followed to this moment"):
        catalog.load_table("public.t1")
    assert ids(served.connect("lsn-0-100"), "t1") == [1]
    first.define(COLUMNS)
    add(served.node, 0x300, first, row=9)
    assert ids(catalog, "t1") == [1, 9]


def test_a_moment_has_the_columns_of_its_time(served: Served) -> None:
    first, _ = two_tables(served.node)
    first.define((*COLUMNS, ("more", "bigint")))
    first.append({"id": [7], "name": ["x"], "more": [70]})
    served.node.publish(0x200, {first: first.version})
    served.node.worker.round()
    past, latest = served.connect("lsn-0-100"), served.connect()
    assert past.load_table("public.t1").schema().column_names == ["id", "name"]
    rows = latest.load_table("public.t1").scan().to_arrow()
    assert rows.column_names == ["id", "name", "more"]
    assert ids(past, "t1") == [1]


def test_what_no_moment_is_is_an_error_that_says_why(served: Served) -> None:
    empty = served.connect()
    assert empty.list_namespaces() == []
    for name, message in (
        ("lsn-0-100", "lies ahead: nothing is mirrored yet"),
        ("moment-1", "no longer kept"),
    ):
        with pytest.raises((RESTError, BadRequestError), match=message):
            served.connect(name)
    two_tables(served.node)
    for name, message in (
        ("lsn-0-101", "LSN 0/101 lies ahead: the newest moment is at 0/100"),
        ("lsn-0-1", "no longer kept: moments stay for iceberg.history_ms"),
        ("lsn-0-100@other", 'subscription "other" has no mirrored tables'),
        ("at-2099-01-01T00:00:00Z", "lies ahead: the newest moment is known until"),
        ("at-2000-01-01T00:00:00Z", "no longer kept"),
        ("at-2026-01-01", "no time with a time zone"),
        ("at-9999-12-31T23:59:59.999-23:00", "no time with a time zone|lies ahead"),
        ("lsn-0-123456789", "there is no warehouse"),
        ("yesterday", "it is latest, now, lsn-0-16B3748"),
    ):
        with pytest.raises((RESTError, BadRequestError), match=message):
            served.connect(name)
    assert ids(served.connect("lsn-0-100@s"), "t1") == [1]


def test_several_subscriptions_need_a_name(served: Served) -> None:
    node = served.node
    first, second = two_tables(node)
    other = replace(node.catalog.subscriptions()[0], oid=Oid(20001), name="other")
    node.catalog.create_subscription(other, [])
    node.catalog.publish(other.oid, Lsn(0x9000), {2: second.version})
    add(node, 0x200, first, row=7)
    with pytest.raises(BadRequestError, match=r"add the subscription .*@other or @s"):
        served.connect("lsn-0-200")
    assert ids(served.connect("lsn-0-200@s"), "t1") == [1, 7]
    assert ids(served.connect("lsn-0-9000@other"), "t2") == [2]


def test_a_time_is_that_of_publication(served: Served) -> None:
    node = served.node
    first, _ = two_tables(node)
    vector = node.catalog.newest_vector(SUBID)
    assert vector is not None
    add(node, 0x200, first, row=7)
    then = served.connect(f"at-{vector.committed_at}")
    assert ids(then, "t1") == [1]


def test_moments_go_with_their_snapshots(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = served.node
    first, _ = two_tables(node)
    pinned = served.connect("now")
    add(node, 0x200, first, row=7)
    node.settings.iceberg = replace(node.settings.iceberg, history_ms=-1)
    add(node, 0x300, first, row=8)
    with pytest.raises(BadRequestError, match="is no longer kept"):
        pinned.load_table("public.t1")
    with pytest.raises(RESTError, match="is no longer kept"):
        served.connect("lsn-0-100")
    assert ids(served.connect("lsn-0-300"), "t1") == [1, 7, 8]
    assert ids(served.connect("lsn-0-300"), "t2") == [2]


def test_an_idle_table_is_at_later_positions_of_its_source(served: Served) -> None:
    two_tables(served.node)
    served.node.publish(0x500, {})
    with pytest.raises(RESTError, match="lies ahead"):
        served.connect("lsn-0-500")
    served.node.worker.round()
    assert ids(served.connect("lsn-0-500"), "t1") == [1]
    assert ids(served.connect("lsn-0-100"), "t1") == [1]


def test_a_role_sees_what_it_may_select(served: Served) -> None:
    two_tables(served.node)
    grant(served.node, 2)
    catalog = served.connect()
    assert catalog.list_tables("public") == [("public", "t2")]
    with pytest.raises(ForbiddenError, match="permission denied for table t1"):
        catalog.load_table("public.t1")
    nobody = served.connect(name="nobody")
    assert nobody.list_namespaces() == []
    (public,) = (x for x in served.node.catalog.namespaces() if x.name == "public")
    served.node.catalog.set_access(namespaces={public.oid: (public.owner, Acl())})
    assert catalog.list_namespaces() == []
    with pytest.raises(ForbiddenError, match="permission denied for schema public"):
        catalog.load_table("public.t2")
    status, answer = served.read("latest/namespaces/public/tables")
    assert (status, answer["error"]["type"]) == (404, "NoSuchNamespaceException")


def test_a_dropped_table_is_gone_from_all_moments(served: Served) -> None:
    two_tables(served.node)
    pinned = served.connect("now")
    served.node.catalog.drop_table(Oid(1))
    with pytest.raises(NoSuchTableError):
        pinned.load_table("public.t1")
    served.node.worker.round()
    assert not (served.node.directory / "run" / "iceberg" / "1.json").exists()


# ---- logins -----------------------------------------------------------------------


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def test_only_a_role_with_its_password_gets_a_token(served: Served) -> None:
    with pytest.raises(OAuthError, match="wrong name or password"):
        served.connect(password="wrong")
    status, answer = served.form(
        basic("reader:secret"), grant_type="client_credentials"
    )
    SPECIFICATION.check(answer, "OAuthTokenResponse")
    assert (status, answer["token_type"], answer["expires_in"]) == (200, "bearer", 3600)
    for expected, fields in (
        (401, {"grant_type": "client_credentials"}),
        (401, {"grant_type": "client_credentials", "client_secret": "secret"}),
        (400, {"grant_type": "password"}),
        (400, {}),
    ):
        status, answer = served.form(None, **fields)
        assert status == expected and answer["error_description"]
        SPECIFICATION.check(answer, "OAuthError")
    failed = [
        served.form(basic("reader:wrong"), grant_type="client_credentials")[0]
        for _ in range(8)
    ]
    assert failed[0] == 401 and failed[-1] == 429


def test_a_token_ends_with_the_password_and_with_the_right_to_log_in(
    served: Served,
) -> None:
    token = served.token()
    key = served.web.directory / "run" / "iceberg" / "tokens.key"
    assert key.stat().st_mode & 0o777 == 0o600

    def status(text: str = token) -> int:
        return served.ask("config", headers={"Authorization": f"Bearer {text}"})[0]

    assert status() == 200
    exchanged, answer = served.form(
        grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
        subject_token=token,
        subject_token_type="urn:ietf:params:oauth:token-type:access_token",
    )
    assert exchanged == 200 and status(answer["access_token"]) == 200
    for bad in ("", "x", "1.2.3", token[:-1] + "é", f"{token}0", "4294967296.1.a"):
        assert status(bad.encode().decode("latin-1")) == 401
    oid, ends, mac = token.split(".")
    assert status(f"{oid}.{int(ends) + 1}.{mac}") == 401
    assert status(f"{NOBODY}.{ends}.{mac}") == 401
    served.node.catalog.update_role(READER, login=False)
    assert status() == 401
    served.node.catalog.update_role(READER, login=True)
    assert status() == 200
    other = str(create_verifier("secret", b"tlas" * 4, iterations=1))
    served.node.catalog.update_role(READER, password=other)
    assert status() == 401
    status_, answer = served.ask("config")
    assert (status_, answer["error"]["type"]) == (401, "NotAuthorizedException")


def test_tokens_outlive_the_process(served: Served) -> None:
    bearer = {"Authorization": f"Bearer {served.token()}"}
    assert served.web.stop() == 0
    served.web.start()
    assert served.ask("config", headers=bearer)[0] == 200


def test_a_token_is_of_no_use_after_its_hour() -> None:
    role = Role(READER, "reader", superuser=False, password=VERIFIER)
    now = [1000.0]
    tokens = Tokens(b"k" * 32, lambda: now[0])
    token = str(tokens.issue(role)["access_token"])

    class Roles:
        def role_by_oid(self, oid: Oid) -> Role | None:
            return role

    assert tokens.role(token, Roles()) == role
    now[0] += TOKEN_SECONDS
    with pytest.raises(CatalogRefusal, match="expired"):
        tokens.role(token, Roles())


# ---- answers ----------------------------------------------------------------------


def test_answers_are_those_of_the_specification(served: Served) -> None:
    two_tables(served.node)
    status, config = served.read("config")
    SPECIFICATION.check(config, "CatalogConfig")
    assert status == 200 and config["overrides"]["prefix"] == "latest"
    assert "POST" not in " ".join(config["endpoints"])
    status, pinned = served.read("config?warehouse=lsn-0-100")
    assert status == 200 and pinned["overrides"]["prefix"].startswith("moment-")
    for path, name in (
        ("latest/namespaces", "ListNamespacesResponse"),
        ("latest/namespaces/public", "GetNamespaceResponse"),
        ("latest/namespaces/public/tables", "ListTablesResponse"),
        ("latest/namespaces/public/tables/t1?snapshots=refs", "LoadTableResult"),
    ):
        SPECIFICATION.check(served.read(path)[1], name)
    status, loaded = served.read("latest/namespaces/public/tables/t1")
    assert status == 200
    SPECIFICATION.check(loaded, "LoadTableResult")
    metadata = TableMetadataUtil.parse_obj(loaded["metadata"])
    assert metadata.current_snapshot_id == loaded["metadata"]["current-snapshot-id"]
    stored = json.loads(Path(loaded["metadata-location"]).read_text())
    assert stored == loaded["metadata"]
    assert served.read("latest/namespaces/public")[1] == {
        "namespace": ["public"],
        "properties": {},
    }
    for path in ("latest/namespaces/public", "latest/namespaces/public/tables/t1"):
        assert served.read(path, method="HEAD") == (204, None)
    for path, code, kind in (
        ("latest/namespaces/none", 404, "NoSuchNamespaceException"),
        ("latest/namespaces/a%1Fb/tables", 404, "NoSuchNamespaceException"),
        ("latest/namespaces/public/tables/t3", 404, "NoSuchTableException"),
        ("latest/namespaces/public/tables/t%2F..", 404, "NoSuchTableException"),
        ("latest/namespaces/public/views", 406, "UnsupportedOperationException"),
        ("other/namespaces", 400, "BadRequestException"),
        ("config?warehouse=other", 404, "NoSuchWarehouseException"),
        ("config?warehouse=at-noon", 400, "BadRequestException"),
        ("", 406, "UnsupportedOperationException"),
    ):
        status, answer = served.read(path)
        SPECIFICATION.check(answer, "IcebergErrorResponse")
        error = ErrorResponse.model_validate(answer).error
        assert (status, error.code, error.type) == (code, code, kind)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "latest/namespaces"),
        ("DELETE", "latest/namespaces/public"),
        ("POST", "latest/namespaces/public/properties"),
        ("POST", "latest/namespaces/public/tables"),
        ("POST", "latest/namespaces/public/tables/t1"),
        ("DELETE", "latest/namespaces/public/tables/t1"),
        ("POST", "latest/tables/rename"),
        ("POST", "latest/transactions/commit"),
        ("PUT", "anything"),
        ("GET", "oauth/tokens"),
    ],
)
def test_no_write_is_supported(served: Served, method: str, path: str) -> None:
    status, answer = served.ask(path, method, body=b"{}")
    assert (status, answer["error"]["type"]) == (406, "UnsupportedOperationException")


def test_an_unchanged_table_is_not_sent_again(served: Served) -> None:
    first, _ = two_tables(served.node)
    path = "/v1/latest/namespaces/public/tables/t1"
    bearer = {"Authorization": f"Bearer {served.token()}"}
    status, headers, body = served.web.get(path, headers=bearer)
    assert status == 200 and body
    tag = headers["etag"]
    for header in (tag, f'"other", W/{tag}', "*"):
        again = served.web.get(path, headers={**bearer, "If-None-Match": header})
        assert again[0] == 304 and again[1]["etag"] == tag and not again[2]
    add(served.node, 0x200, first, row=7)
    changed = served.web.get(path, headers={**bearer, "If-None-Match": tag})
    assert changed[0] == 200 and changed[1]["etag"] != tag


def test_only_the_snapshot_of_the_moment_if_a_client_wants_no_others(
    served: Served,
) -> None:
    first, _ = two_tables(served.node)
    for number in range(3):
        add(served.node, 0x200 + number, first, row=7 + number)
    path = "latest/namespaces/public/tables/t1"
    _, every = served.read(path)
    _, refs = served.read(f"{path}?snapshots=refs")
    assert len(every["metadata"]["snapshots"]) == 4
    assert refs["metadata"]["snapshots"] == every["metadata"]["snapshots"][-1:]
    _, past = served.read(path.replace("latest", "lsn-0-201"))
    assert past["metadata"]["snapshots"] == every["metadata"]["snapshots"][:3]
    stored = json.loads(Path(past["metadata-location"]).read_text())
    assert stored["current-snapshot-id"] == past["metadata"]["current-snapshot-id"]
    assert served.read(f"{path}?snapshots=some")[0] == 400


def test_names_come_in_pages(served: Served) -> None:
    names = []
    for oid in range(1, 8):
        served.node.table(oid)
        names.append(f"t{oid}")
    grant(served.node, *range(1, 8))
    served.node.worker.round()
    path = "latest/namespaces/public/tables?pageSize=3&pageToken="
    found, token, pages = [], "", 0
    while token is not None:
        _, answer = served.read(path + token)
        found += [one["name"] for one in answer["identifiers"]]
        token, pages = answer["next-page-token"], pages + 1
    assert (found, pages) == (names, 3)
    for wrong in ("pageSize=0", "pageSize=x", "pageToken=%ff", "pageToken=a"):
        status, _ = served.read(f"latest/namespaces/public/tables?{wrong}")
        assert status == 400
    assert served.connect().list_tables("public") == [("public", x) for x in names]


def test_readers_get_the_properties_of_the_settings_and_no_keys(
    served: Served,
) -> None:
    two_tables(served.node)
    served.web.configure(
        spark__warehouse="s3://bucket/lake",
        store__endpoint="http://store.example:9000",
        store__region="eu-central-1",
        store__access_key_id="writes",
        store__secret_access_key="hidden",
    )
    file = served.web.directory / FILE_NAME
    header = "[iceberg.reader_properties]"
    properties = f'{header}\n"s3.access-key-id" = "readonly"'
    file.write_text(file.read_text().replace(f"# {header}", properties))
    served.web.reload()
    expected = {
        "s3.endpoint": "http://store.example:9000",
        "s3.path-style-access": "true",
        "client.region": "eu-central-1",
        "s3.region": "eu-central-1",
        "s3.access-key-id": "readonly",
    }

    def config() -> Any:
        return served.read("latest/namespaces/public/tables/t1")[1]["config"]

    wait_until(lambda: config() == expected, describe=lambda: str(config()))
