"""Decides by pg_hba.conf which clients may connect, and how they authenticate.

Takes the text of such a file; returns ``AccessRules``, which finds the first record that matches a
client. Pure: questions to the catalog are a function argument.

A record has a type, databases, users, an address, a method and options:

    # TYPE     DATABASE  USER             ADDRESS        METHOD
    hostssl    all       +analysts        10.0.0.0/8     scram-sha-256
    hostssl    lake      replicator       192.0.2.7/32   scram-sha-256 clientcert=verify-full
    host       all       all              127.0.0.1/32   trust
    host       all       all              all            reject

A node has no Unix socket, so ``local`` records are read but match nobody. ``md5`` means
scram-sha-256, as in PostgreSQL for passwords stored that way. Other methods, host names and
includes are refused when the file is read, never ignored.

Source: PostgreSQL manual, section 20.1; src/backend/libpq/hba.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

from wal2lake.door.auth import AuthMethod
from wal2lake.errors import ConfigurationError

Network = IPv4Network | IPv6Network

IsMember = Callable[[str, str], bool]
"""Returns whether the user (first name) is a member of the role (second name)."""

_TYPES: Final = ("local", "host", "hostssl", "hostnossl", "hostgssenc", "hostnogssenc")

_METHODS: Final = {
    "trust": AuthMethod.TRUST,
    "scram-sha-256": AuthMethod.SCRAM,
    "md5": AuthMethod.SCRAM,
    "reject": None,
    "cert": AuthMethod.TRUST,
}

_NETWORK_WORDS: Final = ("all", "samehost")


class ClientCertificate(Enum):
    """The option clientcert."""

    NONE = "no"
    VERIFY_CA = "verify-ca"
    """A certificate that an authority of ``ssl_ca_file`` has signed."""
    VERIFY_FULL = "verify-full"
    """Such a certificate, whose common name is the user's name."""


@dataclass(frozen=True, slots=True)
class Word:
    """A name in a record. Only an unquoted word can be a keyword."""

    text: str
    quoted: bool = False

    def says(self, keyword: str) -> bool:
        """True if the word is this keyword."""
        return not self.quoted and self.text == keyword


@dataclass(frozen=True, slots=True)
class Peer:
    """The client's address, user and database."""

    host: str
    local_host: str
    """The node's own address of the connection."""
    encrypted: bool
    database: str
    user: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One record of the file."""

    encrypted: bool | None
    """None if the record matches both."""
    databases: tuple[Word, ...]
    users: tuple[Word, ...]
    addresses: Network | str
    """A network, or one of the words ``all`` and ``samehost``."""
    method: AuthMethod | None
    """None for reject."""
    method_name: str
    """Name of the method in the record."""
    certificate: ClientCertificate = ClientCertificate.NONE

    def is_about(self, client: Peer, is_member: IsMember) -> bool:
        """True if the record matches the client."""
        return (
            self.encrypted in (None, client.encrypted)
            and self._has_address(client)
            and any(_names_database(w, client, is_member) for w in self.databases)
            and any(_names_user(w, client.user, is_member) for w in self.users)
        )

    def _has_address(self, client: Peer) -> bool:
        if self.addresses == "all":
            return True
        host = _address(client.host)
        if isinstance(self.addresses, str):
            return host.is_loopback or host == _address(client.local_host)
        return host.version == self.addresses.version and host in self.addresses


@dataclass(frozen=True, slots=True)
class AccessRules:
    """All records, in order."""

    rules: tuple[Rule, ...]

    def find(self, client: Peer, is_member: IsMember) -> Rule | None:
        """Return the first record that matches the client."""
        matching = (rule for rule in self.rules if rule.is_about(client, is_member))
        return next(matching, None)


def everybody(method: AuthMethod) -> AccessRules:
    """Return the rules without a file: one record that matches everybody."""
    every = (Word("all"),)
    return AccessRules((Rule(None, every, every, "all", method, method.value),))


def parse_rules(text: str, source: str) -> AccessRules:
    """Parse a file; a ConfigurationError names the line."""
    return AccessRules(tuple(_rules(text, source)))


def _rules(text: str, source: str) -> Iterator[Rule]:
    joined, first = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if not joined:
            first = number
        if line.endswith("\\"):
            joined += line[:-1]
            continue
        try:
            fields = _fields(joined + line)
            rule = _rule(fields) if fields else None
        except ConfigurationError as error:
            error.context = f'line {first} of configuration file "{source}"'
            raise
        joined = ""
        if rule is not None:
            yield rule


_TOKEN: Final = re.compile(r'"((?:[^"]|"")*)"|([^\s,"#]+)|(,)|(#.*)|("[^"]*$)')


def _fields(line: str) -> list[tuple[Word, ...]]:
    """Split a line into fields at white space; a field has words separated by commas."""
    fields: list[tuple[Word, ...]] = []
    follows = False
    end = -1
    for match in _TOKEN.finditer(line):
        quoted, plain, comma, comment, open_quote = match.groups()
        if comment is not None:
            break
        if open_quote is not None:
            raise ConfigurationError("unterminated quoted string")
        if comma is not None:
            follows, end = True, match.end()
            continue
        text = plain if quoted is None else quoted.replace('""', '"')
        word = Word(text, quoted=quoted is not None)
        if fields and not follows and match.start() == end:
            # "+"name and name"" are each one word, of which a part is quoted.
            last = fields[-1][-1]
            joined = Word(last.text + word.text, last.quoted)
            fields[-1] = (*fields[-1][:-1], joined)
        elif fields and follows:
            fields[-1] = (*fields[-1], word)
        else:
            fields.append((word,))
        follows, end = False, match.end()
    return fields


def _rule(fields: list[tuple[Word, ...]]) -> Rule | None:
    kind = _single(fields[0], "connection type")
    if kind.startswith(("@", "include")):
        raise ConfigurationError(
            "files cannot be included", hint="Write their records here."
        )
    if kind not in _TYPES:
        raise ConfigurationError(f'invalid connection type "{kind}"')
    if len(fields) < 2:
        raise ConfigurationError("end-of-line before database specification")
    if len(fields) < 3:
        raise ConfigurationError("end-of-line before role specification")
    for words in fields[1:3]:
        for word in words:
            _check_name(word)
    if kind == "local":
        return None
    if len(fields) < 4:
        raise ConfigurationError("end-of-line before IP address specification")
    addresses, position = _addresses(fields)
    if len(fields) <= position:
        raise ConfigurationError("end-of-line before authentication method")
    name = _single(fields[position], "authentication type")
    if name not in _METHODS:
        raise ConfigurationError(
            f'invalid authentication method "{name}"',
            hint="A node has trust, reject, scram-sha-256 and cert.",
        )
    certificate = _options(fields[position + 1 :])
    encrypted = {"hostssl": True, "hostnossl": False}.get(kind)
    if name == "cert":
        certificate = ClientCertificate.VERIFY_FULL
    if certificate is not ClientCertificate.NONE and not encrypted:
        raise ConfigurationError(
            "client certificates are only supported on hostssl connections"
        )
    if kind == "hostgssenc":
        return None
    return Rule(
        encrypted, fields[1], fields[2], addresses, _METHODS[name], name, certificate
    )


def _check_name(word: Word) -> None:
    if word.quoted:
        return
    if word.text.startswith("@"):
        raise ConfigurationError(
            "files cannot be included", hint="Write the names here."
        )
    if word.text.startswith("/"):
        try:
            re.compile(word.text[1:])
        except re.error as error:
            raise ConfigurationError(
                f'invalid regular expression "{word.text[1:]}"'
            ) from error


def _addresses(fields: list[tuple[Word, ...]]) -> tuple[Network | str, int]:
    """Return the addresses and the next field's index; a mask may be a field of its own."""
    text = _single(fields[3], "IP address")
    if text in _NETWORK_WORDS:
        return text, 4
    try:
        if "/" in text:
            return ip_network(text, strict=False), 4
        address = ip_address(text)
    except ValueError as error:
        raise ConfigurationError(
            f'invalid IP address "{text}"',
            hint="A node takes addresses with a mask, all and samehost; no host names.",
        ) from error
    if len(fields) < 5:
        raise ConfigurationError("end-of-line before netmask specification")
    mask = _single(fields[4], "IP mask")
    try:
        if address.version == 4:
            return ip_network(f"{address}/{mask}", strict=False), 5
        bits = int(ip_address(mask))
        length = bin(bits).count("1")
        if bits != ((1 << length) - 1) << (128 - length):
            raise ValueError(mask)
        return ip_network(f"{address}/{length}", strict=False), 5
    except ValueError as error:
        raise ConfigurationError(f'invalid IP mask "{mask}"') from error


def _options(fields: list[tuple[Word, ...]]) -> ClientCertificate:
    certificate = ClientCertificate.NONE
    for words in fields:
        name, equals, value = _single(words, "authentication option").partition("=")
        if not equals:
            raise ConfigurationError(
                f"authentication option not in name=value format: {name}"
            )
        if name != "clientcert":
            raise ConfigurationError(
                f'unrecognized authentication option name: "{name}"'
            )
        if value not in ("verify-ca", "verify-full"):
            raise ConfigurationError(f'invalid value for clientcert: "{value}"')
        certificate = ClientCertificate(value)
    return certificate


def _single(words: tuple[Word, ...], item: str) -> str:
    if len(words) > 1:
        raise ConfigurationError(
            f"multiple values specified for {item}",
            hint=f"Specify one {item} per line.",
        )
    return words[0].text


def _names_database(word: Word, client: Peer, is_member: IsMember) -> bool:
    if word.says("all") or (word.says("sameuser") and client.user == client.database):
        return True
    if word.says("samerole") or word.says("samegroup"):
        return is_member(client.user, client.database)
    if word.says("replication"):
        # A node has no physical replication.
        return False
    return _matches(word, client.database)


def _names_user(word: Word, user: str, is_member: IsMember) -> bool:
    if word.says("all"):
        return True
    if not word.quoted and word.text.startswith("+"):
        return is_member(user, word.text[1:])
    return _matches(word, user)


def _matches(word: Word, name: str) -> bool:
    if not word.quoted and word.text.startswith("/"):
        return re.search(word.text[1:], name) is not None
    return word.text == name


def _address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address; an IPv4 address that came over IPv6 becomes an IPv4 address."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
