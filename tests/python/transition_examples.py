"""Imports of the examples of transition scores, which share modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_MODULES = ("transition_scores", "transition_chains", "transition_parts", "transition_results",
            "transition_demo", "block_parts", "stories260k", "stories260k_parts",
            "stories260k_scorers")  # fmt: skip


def import_example(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Any]:
    """The module of an example; afterwards all modules are forgotten."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module(name)
    for module in _MODULES:
        sys.modules.pop(module, None)
