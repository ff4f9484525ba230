"""Hooks of mkdocs: a page that would load anything from elsewhere ends the build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# What a browser fetches by itself; links that a reader clicks may go anywhere.
LOADS = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'>\s]+"
    r"|<link\b[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon)[^>]*\bhref=[\"']?(?:https?:)?//[^>]+"
    r"|<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect)"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//\S+"
    r"|url\([\"']?(?:https?:)?//[^)]+\)"
)


def on_post_build(config: Any, **_: Any) -> None:
    """Searches every page and style sheet of the finished site."""
    loads = []
    for path in sorted(Path(config["site_dir"]).rglob("*")):
        if path.suffix in (".html", ".css"):
            loads += [f"{path.name}: {load[:120]}" for load in LOADS.findall(path.read_text())]
    if loads:
        raise SystemExit(
            "the site would load from elsewhere; expected files of its own alone:\n"
            + "\n".join(loads[:20])
        )
