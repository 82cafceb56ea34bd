"""Help mkdocs with what its own configuration cannot say.

``on_config`` fills the parts of the navigation that are folders. ``on_page_markdown`` looks at
links that lead out of docs/, to sources and tests: the target must be there, and the site shows
its name as text, because the site does not hold it.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Final

_log: Final = logging.getLogger("mkdocs.hooks.sitelinks")

ROOT: Final = Path(__file__).parents[1]

_LINK: Final = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")

_NUMBER: Final = re.compile(r"(\d*)")


def on_config(config: Any) -> Any:
    """List the pages of folders by their leading numbers; the guide is second if it is there."""
    docs = Path(config["docs_dir"])
    nav = [_filled(docs, entry) for entry in config["nav"]]
    guide = docs / "guide"
    if guide.is_dir():
        nav.insert(1, {"Guide": _pages(docs, guide)})
    config["nav"] = nav
    return config


def _filled(docs: Path, entry: Any) -> Any:
    ((title, target),) = entry.items()
    if isinstance(target, str) and (docs / target).is_dir():
        return {title: _pages(docs, docs / target)}
    return entry


def _pages(docs: Path, folder: Path) -> list[str]:
    paths = sorted(folder.glob("*.md"), key=_order)
    return [str(path.relative_to(docs)) for path in paths]


GUIDE: Final = (
    "index",
    "first-subscription",
    "serve-to-postgresql",
    "when-a-table-fails",
    "schema-changes",
    "types-and-values",
    "reading",
    "history",
    "streaming",
    "operation",
    "monitoring",
    "page",
    "containers",
    "cluster",
    "from-debezium",
)
"""The order of the guide's pages."""


def _order(path: Path) -> tuple[int, int, str]:
    number = _NUMBER.match(path.stem)
    assert number is not None
    place = GUIDE.index(path.stem) if path.stem in GUIDE else len(GUIDE)
    return (place, int(number[1] or 0), path.stem)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace links out of docs/ by their text; a warning, so a failure, for a dead one."""
    source = Path(page.file.abs_src_path)
    docs = Path(config["docs_dir"]).resolve()

    def replaced(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve()
        if target.is_relative_to(docs):
            return match[0]
        if not target.is_relative_to(ROOT) or not target.exists():
            _log.warning("%s links to %s, which is not there", source.name, match[2])
        return match[1]

    return _LINK.sub(replaced, markdown)
