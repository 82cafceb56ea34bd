"""[web] listen: what is accepted, and what needs TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.errors import ConfigurationError
from wal2lake.settings import (
    FILE_NAME,
    ListenAddress,
    load,
    parse_web_listen,
    render_default_toml,
)


def loaded(directory: Path, **chosen: object) -> str:
    dotted = {k.replace("__", "."): v for k, v in chosen.items()}
    (directory / FILE_NAME).write_text(render_default_toml(dotted))
    return load(directory, {}).web.listen


def test_the_default_is_this_machine_alone(tmp_path):
    assert loaded(tmp_path) == "127.0.0.1:5481"


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", ()),
        (" , ", ()),
        ("localhost:0", (ListenAddress("localhost", 0),)),
        ("[::1]:80, *:81", (ListenAddress("::1", 80), ListenAddress("*", 81))),
        ("a:1,a:1", (ListenAddress("a", 1),)),
    ],
)
def test_addresses_are_hosts_with_ports(text, addresses):
    assert parse_web_listen(text) == addresses
    assert parse_web_listen(",".join(map(str, addresses))) == addresses


@pytest.mark.parametrize(
    "text",
    ["5481", ":5481", "localhost", "::1:80", "a:65536", "a:-1", "a:٣", "a:", "[]:1"],
)
def test_anything_else_is_an_error_with_examples(text):
    with pytest.raises(ConfigurationError) as raised:
        parse_web_listen(text)
    assert raised.value.message == (
        f'invalid value for parameter "web.listen": "{text}"'
    )
    assert raised.value.hint == (
        "Name each address with its port, as in 127.0.0.1:5481, [::1]:5481 or *:5481;"
        " several with commas between them, an empty text for none."
    )


@pytest.mark.parametrize(
    "listen",
    ["*:5481", "0.0.0.0:1", "[::]:1", "node.example:1", "127.0.0.1:1,10.0.0.1:1"],
)
def test_an_address_beyond_this_machine_needs_tls(tmp_path, listen):
    with pytest.raises(ConfigurationError) as raised:
        loaded(tmp_path, web__listen=listen)
    assert 'which needs TLS, but "node.ssl" is off' in raised.value.message
    assert raised.value.hint == (
        'Set "ssl", "ssl_cert_file" and "ssl_key_file" of [node], or listen on'
        " 127.0.0.1 alone."
    )
    assert loaded(tmp_path, web__listen=listen, node__ssl=True) == listen


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_loopback_needs_no_tls(tmp_path, host):
    assert loaded(tmp_path, web__listen=f"{host}:1") == f"{host}:1"
