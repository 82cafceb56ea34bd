"""The options of a publication: names, values, error texts.

Takes the options of a statement; returns the fields of ``Publication`` that they set, with every
value checked.

Source: parse_publication_options() in publicationcmds.c; SplitIdentifierString() in varlena.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from wal2lake.catalog import PublishedOperation
from wal2lake.errors import SqlSyntaxError
from wal2lake.sql.grammar import fold
from wal2lake.sql.grammar.options import boolean_option
from wal2lake.sql.grammar.statements import StatementOption

_GENERATED: Final = {"none": "n", "stored": "s"}
_ITEM: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s,"]+))\s*(?:,|\Z)')


def publication_options(options: Sequence[StatementOption]) -> dict[str, Any]:
    """Return the given options under the names of ``Publication``'s fields."""
    fields: dict[str, Any] = {}
    for option in options:
        read: Callable[[StatementOption], Any]
        match option.name:
            case "publish":
                field, read = "publishes", _operations
            case "publish_via_partition_root":
                field, read = "via_root", boolean_option
            case "publish_generated_columns":
                field, read = "generated_columns", _generated
            case _:
                raise SqlSyntaxError(
                    f'unrecognized publication parameter: "{option.name}"'
                )
        if field in fields:
            error = SqlSyntaxError("conflicting or redundant options")
            error.position = option.position
            raise error
        fields[field] = read(option)
    return fields


def _operations(option: StatementOption) -> frozenset[PublishedOperation]:
    if option.value is None:
        raise SqlSyntaxError(f"{option.name} requires a parameter")
    operations = set()
    for name in _names(option.value.text):
        try:
            operations.add(PublishedOperation(name))
        except ValueError:
            raise SqlSyntaxError(
                f'unrecognized value for publication option "publish": "{name}"'
            ) from None
    return frozenset(operations)


def _names(text: str) -> list[str]:
    """Split a comma-separated list of identifiers; a blank text has none."""
    names: list[str] = []
    position = 0
    while text.strip() and position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise SqlSyntaxError('invalid list syntax in parameter "publish"')
        quoted, bare = match.groups()
        names.append(fold(bare) if quoted is None else quoted.replace('""', '"'))
        position = match.end()
    if text.rstrip().endswith(","):
        raise SqlSyntaxError('invalid list syntax in parameter "publish"')
    return names


def _generated(option: StatementOption) -> str:
    text = "" if option.value is None else option.value.text
    value = _GENERATED.get(text.lower())
    if value is None:
        raise SqlSyntaxError(
            f'invalid value for publication parameter "{option.name}": "{text}"',
            detail='Valid values are "none" and "stored".',
        )
    return value
