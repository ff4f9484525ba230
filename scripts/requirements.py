"""Prints what extras of pyproject.toml require of others, one requirement a line.

Usage: requirements.py EXTRA [EXTRA ...]

An extra that names others of this project (`lattice-bpd[torch,train]`) or a distribution in
packages/ or research/ (`lattice-bpd-spark`) is replaced by what they require, so that pip can
install it without building this project.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
OWN = re.compile(r"(lattice-bpd[\w-]*)(?:\[([\w,-]+)\])?")


def load_extras() -> dict[str, list[str]]:
    """The extras of pyproject.toml, and the requirements of packages/ and research/ by name."""
    extras = dict(_read_project(ROOT)["optional-dependencies"])
    for folder in [*ROOT.glob("packages/*/"), *ROOT.glob("research/*/")]:
        if (folder / "pyproject.toml").is_file():
            project = _read_project(folder)
            extras[project["name"]] = project["dependencies"]
    return extras


def _read_project(folder: Path) -> dict[str, Any]:
    """The table [project] of a folder's pyproject.toml."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


def requirements(names: list[str], extras: dict[str, list[str]]) -> list[str]:
    """Third-party requirements of some extras, each once, in the order of their first mention.

    Raises:
        SystemExit: There is no extra of that name.
    """
    listed_names: dict[str, None] = {}
    for name in names:
        if name not in extras:
            raise SystemExit(f"no extra {name!r}; expected some of {', '.join(extras)}")
        for requirement in extras[name]:
            own = OWN.fullmatch(requirement)
            if own is None:
                listed = [requirement]
            else:  # the core itself requires numpy, which `build` installs
                names_below = [own[1], *(own[2] or "").split(",")]
                listed = requirements(
                    [n for n in names_below if n not in ("lattice-bpd", "")], extras
                )
            listed_names.update(dict.fromkeys(listed))
    return list(listed_names)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    print(*requirements(sys.argv[1:], load_extras()), sep="\n")
