"""Hints about type_mappings, value_policies and conflict_resolution: all that they say may be
written is taken."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from wal2lake.errors import Wal2LakeError
from wal2lake.pgtypes import SourceColumn, TypeMappings, ValuePolicies
from wal2lake.pgtypes.choices.resolutions import ConflictResolutions

mappings, policies = TypeMappings.parse, ValuePolicies.parse
resolutions = ConflictResolutions.parse


def hint_of(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(Wal2LakeError) as caught:
        call(*arguments)
    assert caught.value.hint is not None, caught.value
    return caught.value.hint


def listed(hint: str) -> list[str]:
    """The words behind its colon."""
    return hint.rpartition(":")[2].strip(" .").split(", ")


def test_entries_and_their_targets() -> None:
    assert hint_of(mappings, "numeric") == (
        "Write type = choice or schema.table.column = choice, separated by commas."
    )
    mappings("numeric = string, s.t.c = string")
    policies("numeric = null, s.t.c = null")
    hint = hint_of(mappings, "numeric(x) = string")
    targets = re.fullmatch(r"Name a type \((.*)\) or a column \((.*)\)\.", hint)
    assert targets is not None
    for target in (*targets[1].split(", "), targets[2]):
        mappings(f"{target} = string")
        policies(f"{target} = null")
    assert "name types or columns" in hint_of(mappings, "* = string")
    assert hint_of(resolutions, "insert_exists") == (
        "Write type = resolution or schema.table.type = resolution, separated by commas."
    )
    resolutions("insert_exists = skip, s.t.insert_exists = skip")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "bool",
            "int2",
            "int4",
            "int8",
            "float4",
            "float8",
            "numeric",
            "numeric(9,2)",
        ),
        *("date", "time", "timestamp", "timestamptz", "interval", "uuid", "bytea"),
        *("text", "varchar(3)", "json", "jsonb", "inet", "oid", "money", "int4range"),
        *("bool[]", "int4[]", "numeric[]", "timestamptz[]", "jsonb[]"),
    ],
)
def test_each_type_is_stored_as_any_that_is_possible(name: str) -> None:
    hint = hint_of(mappings, f"{name} = struct<a:int>")
    assert hint.startswith("Possible: STRING")
    for one in listed(hint.replace("or ARRAY<...> of", "")):
        choice = one.replace("(p,s)", "(12,3)").strip()
        whole = f"array<{choice}>" if name.endswith("[]") else choice
        mappings(f"{name} = {whole}")
        mappings(f"{name} = string")


def test_a_column_that_cannot_be_widened_as_it_is_chosen() -> None:
    column = SourceColumn("s", "t", "c", 1700, -1)
    wide = policies("s.t.c = lossless")
    assert hint_of(mappings("numeric = double").stored_type, column, wide) == (
        'Leave out the entry of "type_mappings", or choose STRING.'
    )
    # A numeric is text already.
    for taken in ("numeric = string", ""):
        assert mappings(taken).stored_type(column, wide) is None


def test_policies() -> None:
    for name, wrong in (("date", "maybe"), ("jsonb", "maybe"), ("jsonb", "clamp")):
        for one in listed(hint_of(policies, f"{name} = {wrong}")):
            if (name, one) != ("jsonb", "clamp"):
                (entry,) = policies(f"{name} = {one}").entries
                assert entry.choice.value == one.strip().lower()


def test_resolutions() -> None:
    for wrong in ("what", "multiple_unique_conflicts"):
        types = listed(hint_of(resolutions, f"{wrong} = error"))
        assert len(types) > 5
        for kind in types:
            for one in listed(hint_of(resolutions, f"{kind} = no_such")):
                resolutions(f"{kind} = {one}")
    for text in (
        "update_missing = keep_local",
        "delete_missing = apply_remote",
        "delete_missing = (local)",
        "s.t.update_missing = set (a = 1)",
    ):
        kind = text.split(" ")[0]
        for one in listed(hint_of(resolutions, text)):
            resolutions(f"{kind} = {one.replace('(expression)', repr(one))}")
    hint = hint_of(resolutions, "insert_exists = ('skip')")
    assert hint == "Write schema.table.insert_exists = ..."
    resolutions("schema.table.insert_exists = ('skip')")


def test_expressions() -> None:
    conflict = "s.t.insert_exists = "
    for text in ("()", "(a", "set (a)", "set ()"):
        hint = hint_of(resolutions, conflict + text)
        words = re.search(r"one of (.*), or set \(column = expression, \.\.\.\)", hint)
        assert words is not None
        for word in words[1].split(", "):
            resolutions(f"{conflict}({word})")
        resolutions(f"{conflict}set (a = local.a, b = remote.b)")
    assert hint_of(resolutions, conflict + "set (a = 1 --1)") == (
        "Leave it out; write - -1 for a minus before a negative number."
    )
    resolutions(conflict + "set (a = 1 - -1)")
