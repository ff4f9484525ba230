"""Prints what extras of pyproject.toml require of others, one requirement a line.

Usage: requirements.py EXTRA [EXTRA ...]

An extra that names others of this project (`lattice-bpd[torch,train]`) is replaced by what they
require, so that pip can install it without building this project.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
OWN = re.compile(r"lattice-bpd\[([\w,-]+)\]")


def load_extras() -> dict[str, list[str]]:
    """The table [project.optional-dependencies] of pyproject.toml."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return dict(project["optional-dependencies"])


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
            listed = requirements(own[1].split(","), extras) if own else [requirement]
            listed_names.update(dict.fromkeys(listed))
    return list(listed_names)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    print(*requirements(sys.argv[1:], load_extras()), sep="\n")
