"""Checks values by the schemas of an OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class Schemas:
    """The schemas of a description."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Any] = description["components"]["schemas"]

    def check(self, value: Any, name: str) -> None:
        """Fail unless a value is as the schema of this name says."""
        self._check(value, self._schemas[name], name)

    def _check(self, value: Any, schema: Mapping[str, Any], place: str) -> None:
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            self._check(value, self._schemas[name], place)
            return
        if value is None and schema.get("nullable"):
            return
        for part in schema.get("allOf", ()):
            self._check(value, part, place)
        for choice in ("oneOf", "anyOf"):
            if choice in schema:
                self._check_any(value, schema[choice], place)
        kind = schema.get("type")
        if kind is not None:
            is_of_kind = isinstance(value, _TYPES[kind])
            assert is_of_kind, f"{place} is no {kind}: {value!r}"
        assert "enum" not in schema or value in schema["enum"], f"{place}: {value!r}"
        assert "const" not in schema or value == schema["const"], f"{place}: {value!r}"
        if isinstance(value, list):
            for number, element in enumerate(value):
                self._check(element, schema.get("items", {}), f"{place}[{number}]")
        if isinstance(value, dict):
            self._check_properties(value, schema, place)

    def _check_any(self, value: Any, choices: list[Any], place: str) -> None:
        reasons = []
        for choice in choices:
            try:
                self._check(value, choice, place)
            except AssertionError as error:
                reasons.append(str(error))
            else:
                return
        raise AssertionError(f"{place} is none of the choices: {reasons}")

    def _check_properties(
        self, value: dict[str, Any], schema: Mapping[str, Any], place: str
    ) -> None:
        declared = schema.get("properties", {})
        for name in schema.get("required", ()):
            assert name in value, f"{place} has no {name}"
        more = schema.get("additionalProperties", True)
        for name, content in value.items():
            if name in declared:
                self._check(content, declared[name], f"{place}.{name}")
            elif isinstance(more, Mapping):
                self._check(content, more, f"{place}.{name}")
            else:
                assert more, f"{place}.{name} is not known"
