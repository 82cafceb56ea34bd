"""Prints plans in the four formats of EXPLAIN. Pure.

Comes in: a tree of ``PlanNode`` and the properties of the whole query. Goes out: the lines of the
text format, or one document. Programs that draw plans read these formats, so they are PostgreSQL's
to the last blank.

Source: explain_format.c and ExplainNode() in explain.c.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final
from xml.sax.saxutils import escape

from wal2lake.sql.grammar.explaining import ExplainFormat

PlanValue = str | bool | int | Decimal | tuple[str, ...]
"""A property's value. Decimal: a number with its digits as they are shown."""

_NAMESPACE: Final = "http://www.postgresql.org/2009/explain"


@dataclass(frozen=True, slots=True)
class PlanProperty:
    """One property of a node or of the query."""

    name: str
    value: PlanValue
    in_text: bool = True
    """False: the node's first line in the text format has the value already."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One step of a plan."""

    title: str
    """The node's first line in the text format."""
    properties: tuple[PlanProperty, ...]
    """The first is Node Type."""
    children: tuple[PlanNode, ...] = ()


def rendered(
    plan: PlanNode, summary: Sequence[PlanProperty], form: ExplainFormat
) -> list[str]:
    """Return the rows of the answer. ``summary``: properties of the query."""
    match form:
        case ExplainFormat.TEXT:
            lines = list(_text(plan, 0))
            lines += (f"{item.name}: {item.value} ms" for item in summary)
            return lines
        case ExplainFormat.JSON:
            return ["\n".join(["[", "  {", *_json_query(plan, summary), "  }", "]"])]
        case ExplainFormat.XML:
            return ["\n".join(_xml(plan, summary))]
        case ExplainFormat.YAML:
            return ["\n".join(_yaml(plan, summary))]


# ---- text ------------------------------------------------------------------------------


def _text(node: PlanNode, indent: int) -> Iterator[str]:
    blanks = " " * (2 * indent)
    if indent:
        yield f"{blanks}->  {node.title}"
        indent += 2
    else:
        yield node.title
    indent += 1
    blanks = " " * (2 * indent)
    for item in node.properties:
        if item.in_text:
            yield f"{blanks}{item.name}: {_as_text(item.value)}"
    for child in node.children:
        yield from _text(child, indent)


def _as_text(value: PlanValue) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return _scalar(value)


def _scalar(value: str | bool | int | Decimal) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- JSON ------------------------------------------------------------------------------


def _json_query(plan: PlanNode, summary: Sequence[PlanProperty]) -> Iterator[str]:
    parts = [list(_json_group('"Plan": ', plan, 4))]
    parts += ([f"    {_json_property(item)}"] for item in summary)
    yield from _with_commas(parts)


def _json_group(label: str, node: PlanNode, indent: int) -> Iterator[str]:
    blanks = " " * indent
    yield f"{blanks}{label}{{"
    parts = [[f"{blanks}  {_json_property(item)}"] for item in node.properties]
    if node.children:
        children = [list(_json_group("", c, indent + 4)) for c in node.children]
        parts.append([f'{blanks}  "Plans": [', *_with_commas(children), f"{blanks}  ]"])
    yield from _with_commas(parts)
    yield f"{blanks}}}"


def _json_property(item: PlanProperty) -> str:
    value = item.value
    if isinstance(value, tuple):
        text = f"[{', '.join(map(_quoted, value))}]"
    else:
        text = _quoted(value) if isinstance(value, str) else _scalar(value)
    return f"{_quoted(item.name)}: {text}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _with_commas(parts: Iterable[list[str]]) -> Iterator[str]:
    held: list[str] = []
    for part in parts:
        if held:
            yield from held[:-1]
            yield f"{held[-1]},"
        held = part
    yield from held


# ---- XML -------------------------------------------------------------------------------


def _xml(plan: PlanNode, summary: Sequence[PlanProperty]) -> Iterator[str]:
    yield f'<explain xmlns="{_NAMESPACE}">'
    yield "  <Query>"
    yield from _xml_node(plan, 4)
    for item in summary:
        yield from _xml_property(item, 4)
    yield "  </Query>"
    yield "</explain>"


def _xml_node(node: PlanNode, indent: int) -> Iterator[str]:
    blanks = " " * indent
    yield f"{blanks}<Plan>"
    for item in node.properties:
        yield from _xml_property(item, indent + 2)
    if node.children:
        yield f"{blanks}  <Plans>"
        for child in node.children:
            yield from _xml_node(child, indent + 4)
        yield f"{blanks}  </Plans>"
    yield f"{blanks}</Plan>"


def _xml_property(item: PlanProperty, indent: int) -> Iterator[str]:
    blanks, tag = " " * indent, item.name.replace(" ", "-")
    if isinstance(item.value, tuple):
        yield f"{blanks}<{tag}>"
        for part in item.value:
            yield f"{blanks}  <Item>{_escaped(part)}</Item>"
        yield f"{blanks}</{tag}>"
    else:
        yield f"{blanks}<{tag}>{_escaped(_scalar(item.value))}</{tag}>"


def _escaped(text: str) -> str:
    return escape(text, {"\r": "&#x0d;"})


# ---- YAML ------------------------------------------------------------------------------


def _yaml(plan: PlanNode, summary: Sequence[PlanProperty]) -> Iterator[str]:
    yield "- Plan: "
    yield from _yaml_node(plan, "    ", "    ")
    for item in summary:
        yield from _yaml_property(item, "  ")


def _yaml_node(node: PlanNode, first: str, blanks: str) -> Iterator[str]:
    """Yield the lines of a node. ``first``: what precedes its first property."""
    for item in node.properties:
        lines = list(_yaml_property(item, blanks))
        yield first + lines[0][len(blanks) :]
        yield from lines[1:]
        first = blanks
    if node.children:
        yield f"{blanks}Plans: "
        for child in node.children:
            yield from _yaml_node(child, f"{blanks}  - ", f"{blanks}    ")


def _yaml_property(item: PlanProperty, blanks: str) -> Iterator[str]:
    value = item.value
    if isinstance(value, tuple):
        yield f"{blanks}{item.name}: "
        for part in value:
            yield f"{blanks}  - {_quoted(part)}"
    else:
        text = _quoted(value) if isinstance(value, str) else _scalar(value)
        yield f"{blanks}{item.name}: {text}"
