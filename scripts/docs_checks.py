"""Pages of the documentation, and hooks of mkdocs that build and check the site.

The site has the pages of docs/, the root's and those beside the add-ons. Links between them are
those that a reader of the repository follows. A page that would load anything from elsewhere ends
the build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md", "CONTRIBUTING.md", "docs/**/*.md", "packages/*/*.md", "research/*/*.md",
    "integrations/**/*.md",
)  # fmt: skip
LINK = re.compile(r"\[(?P<text>[^][]*)\]\((?P<path>[^()\s#:]+)(?P<anchor>#[^()\s]*)?\)")
# What a browser fetches by itself; links that a reader clicks may go anywhere.
LOADS = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'>\s]+"
    r"|<link\b[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon)[^>]*\bhref=[\"']?(?:https?:)?//[^>]+"
    r"|<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect)"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//\S+"
    r"|url\([\"']?(?:https?:)?//[^)]+\)"
)


def find_pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})


def _address(path: Path) -> str:
    """Where a file of the repository is in the site."""
    docs = ROOT / "docs"
    return str(path.relative_to(docs if path.is_relative_to(docs) else ROOT))


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages outside of docs/."""
    from mkdocs.structure.files import File

    for page in find_pages():
        if not page.is_relative_to(ROOT / "docs"):
            files.append(File.generated(config, _address(page), abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files of the repository into links of the site, or into plain text."""
    source = Path(page.file.abs_src_path)

    def resolve(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / link["path"]))
        if target in pages or target.is_relative_to(ROOT / "docs"):
            address = os.path.relpath(_address(target), Path(_address(source)).parent)
            return f"[{link['text']}]({address}{link['anchor'] or ''})"
        return link["text"] if target.exists() else link[0]

    pages = set(find_pages())
    if source == ROOT / "README.md":  # its <picture>
        markdown = re.sub(r'\b(src|srcset)="docs/', r'\1="', markdown)
    return LINK.sub(resolve, markdown)


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
