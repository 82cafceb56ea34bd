"""Hints about values name what works (pgtypes/choices/remedies.py)."""

from __future__ import annotations

import re

import pytest

from wal2lake.pgtypes import (
    SourceColumn,
    TypeMappings,
    ValuePolicies,
    ValuePolicy,
    mapping_for,
    remedy,
)

INT_ARRAY = 1007


@pytest.mark.parametrize(
    "name", [("public", "t", "v"), ("Odd.Sch", 'a "b"', "ü"), ("s", "t$1", "Select")]
)
@pytest.mark.parametrize("nullable", [True, False])
def test_the_entries_of_a_hint_are_taken_and_are_about_that_column(
    name: tuple[str, str, str], nullable: bool
) -> None:
    hint = remedy("22008", name, nullable=nullable, in_key=False)
    column = SourceColumn(*name, INT_ARRAY, -1)
    policy, mapping = re.findall(r'Add "(.*?)"(?: \(|,| to)|add "(.*)" to type_m', hint)
    expected = ValuePolicy.NULL if nullable else ValuePolicy.CLAMP
    assert ValuePolicies.parse(policy[0]).of(column) is expected
    stored = TypeMappings.parse(mapping[1]).stored_type(column, ValuePolicies.parse(""))
    assert stored is not None
    assert mapping_for(*stored).spark_ddl == "STRING"


def test_no_policy_is_named_where_none_applies() -> None:
    name = ("public", "t", "v")
    key = remedy("22008", name, nullable=False, in_key=True)
    assert "value_policies" not in key
    assert key.startswith('Add "public.t.v = string" to type_mappings')
    null = remedy("23502", name, nullable=False, in_key=False)
    malformed = remedy("22P03", name, nullable=True, in_key=False)
    assert "value_policies" not in null + malformed
    assert "DROP NOT NULL" in null
    assert "REFRESH PUBLICATION" in remedy("23502", name, nullable=False, in_key=True)
    assert "binary = false" in malformed


def test_no_other_type_is_named_for_a_value_that_none_takes() -> None:
    name = ("public", "t", "v")
    long = remedy("54000", name, nullable=True, in_key=False)
    assert long == (
        'Add "public.t.v = null" to value_policies (ALTER SUBSCRIPTION ... SET); or raise'
        ' "max_value_bytes" under [apply] in wal2lake.toml and restart the node.'
    )
    for nullable, in_key in ((False, False), (True, True), (False, True)):
        key = remedy("54000", name, nullable=nullable, in_key=in_key)
        assert key.startswith('Raise "max_value_bytes"')
        encoding = remedy("22021", name, nullable=nullable, in_key=in_key)
        assert encoding.startswith("Correct the row at the source, drop the table here")


@pytest.mark.parametrize("sqlstate", ["22023", "22P02"])
def test_no_nearest_value_is_named_where_clamp_has_none(sqlstate: str) -> None:
    name = ("public", "t", "v")
    assert "clamp" not in remedy(sqlstate, name, nullable=True, in_key=False)
    required = remedy(sqlstate, name, nullable=False, in_key=False)
    assert required.startswith('Add "public.t.v = string" to type_mappings')
