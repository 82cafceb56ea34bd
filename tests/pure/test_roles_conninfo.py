"""What the connection string of somebody who is no superuser must and must not have."""

from __future__ import annotations

import pytest

from wal2lake.errors import UsageError
from wal2lake.pg import check_password_given, redact


def refusal(text: str) -> str | None:
    try:
        check_password_given(text)
    except UsageError as error:
        return error.message
    return None


@pytest.mark.parametrize("text", ["host=h", "host=h password=''", "postgres://u@h/d"])
def test_a_password_must_be_given(text: str) -> None:
    with pytest.raises(UsageError, match="password is required") as caught:
        check_password_given(text)
    assert caught.value.sqlstate == "2F003"
    assert "must provide a password" in str(caught.value.detail)


@pytest.mark.parametrize("text", ["host=h password=x", "postgres://u:x@h/d"])
def test_a_password_is_enough(text: str) -> None:
    assert refusal(text) is None


def test_nobody_has_the_node_write_a_file() -> None:
    with pytest.raises(UsageError, match="sslkeylogfile") as caught:
        check_password_given("host=h password=x sslkeylogfile=/tmp/keys")
    assert caught.value.sqlstate == "42501"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("host=h  user=u passfile=f", "host=h  user=u passfile=f"),
        ("postgres://u@h/db?application_name=a", None),
        ("host=a password=b user=c", "user=c password=******** host=a"),
        (r"password = 'a \'b\\' host=h", "password=******** host=h"),
        (r"password=a\ b host=h", "password=******** host=h"),
        ("sslpassword= 'x y' dbname=d", "dbname=d sslpassword=********"),
        ("oauth_client_secret=x host=h", "host=h oauth_client_secret=********"),
        ("postgres://u:p%40:q@h/db", "user=u password=******** dbname=db host=h"),
        ("postgresql://h/db?user=u&pass%77ord=p", None),
        ("host='unterminated password=p", "********"),
    ],
)
def test_what_libpq_calls_a_secret_is_not_shown(text: str, shown: str | None) -> None:
    found = redact(text)
    if shown is not None:
        assert found == shown
    assert "=p" not in found.replace("=********", "")
