"""Shows docstrings as they are meant: their roles, such as :class:`NGramLM`, become plain code.

A griffe extension, named in mkdocs.yml; mkdocstrings reads docstrings as Markdown.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?\.?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites the docstring of every object that has one."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each object when all of it has been read."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = text.replace("``", "`")
