"""What the connection string of somebody who is no superuser must and must not have."""

from __future__ import annotations

import pytest

from wal2lake.errors import UsageError
from wal2lake.pg import check_password_given


@pytest.mark.parametrize("text", ["host=h", "host=h password=''", "postgres://u@h/d"])
def test_a_password_must_be_given(text: str) -> None:
    with pytest.raises(UsageError, match="password is required") as caught:
        check_password_given(text)
    assert caught.value.sqlstate == "2F003"
    assert "must provide a password" in str(caught.value.detail)


@pytest.mark.parametrize("text", ["host=h password=x", "postgres://u:x@h/d"])
def test_a_password_is_enough(text: str) -> None:
    check_password_given(text)


def test_nobody_has_the_node_write_a_file() -> None:
    with pytest.raises(UsageError, match="sslkeylogfile") as caught:
        check_password_given("host=h password=x sslkeylogfile=/tmp/keys")
    assert caught.value.sqlstate == "42501"
