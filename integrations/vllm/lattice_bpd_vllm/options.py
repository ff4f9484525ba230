"""Options of the drafter, as a server's configuration gives them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

CONFIG_KEY = "lattice_bpd"
"""The key of the options in vLLM's `additional_config`."""

UNUSED = {
    "mixture": ("alpha", "temperature"),
    "chain": ("sources", "store"),
    "best": ("temperature", "sources", "store"),
    "argmax": ("lm", "top_k", "alpha", "temperature", "sources", "store"),
}
"""Draft forms, see `DrafterOptions.draft`, and the options that each does not use."""

SOURCES = ("heads", "lm", "text", "target")
"""What "mixture" may draft from."""

_LEAST_STORE = 1000  # tokens
_STRINGS = ("directory", "heads", "draft", "store")
_LISTS = ("lm", "sources")
_BOOLEANS = ("check",)


@dataclass(frozen=True)
class DrafterOptions:
    """What to draft with, and how; None is the value of drafter.json, else the library's default.

    Attributes:
        directory: folder with drafter.json, heads and LMs, as far as there are any; None: there is
            none. Not the model's own folder: vLLM would load the heads as weights of the model.
        heads: folder of the heads, if it is not `directory`, or of a block drafter's checkpoint.
        lm: file of the n-gram LM, or for "mixture" a list of files, if they are not those that
            drafter.json names; not for "argmax".
        draft: "mixture" (the most probable tokens of all sources, as many as pay), or with heads
            "chain" (the draft with the most expected accepted tokens), "best" (the best path) or
            "argmax" (the most likely token of each head); None: of drafter.json, else "mixture".
        sources: of "mixture": "heads", "lm", "text" (prompt and output so far), "target" (the
            model's own predictions, of model runner V1); None: all that there are.
        store: for "mixture", a file of the texts that were served, which are a source too, by
            tenant; "" keeps them in memory only; None: they are none.
        store_tokens: most tokens of it, about 0.5 kB each.
        top_k: candidates of each slot; not for "argmax".
        alpha: weight of the LM's log probabilities; for "chain" and "best".
        temperature: divides the scores of "chain"; for "chain" only.
        threads: at most so many for top-k and search, 0 for all cores; fewer where there is little
            to do. On the CPU they are torch's own.
        log_seconds: least time between two log lines with counts; 0 logs nothing.
        check: verify hidden rows and raise errors instead of logging them; for tests with greedy
            requests whose logits no processor changes.

    Raises:
        TypeError: a value of another type.
        ValueError: a value out of range.
    """

    directory: str | None = None
    heads: str | None = None
    lm: str | Sequence[str] | None = None
    draft: str | None = None
    sources: Sequence[str] | None = None
    store: str | None = None
    store_tokens: int = 200_000
    top_k: int | None = None
    alpha: float | None = None
    temperature: float | None = None
    threads: int = 0
    log_seconds: float = 60.0
    check: bool = False

    def __post_init__(self) -> None:
        """Raise for values that cannot be drafted with."""
        for name in _STRINGS:
            _check_type(name, getattr(self, name), (str, type(None)), "a string")
        for name in _LISTS:
            _check_strings(name, getattr(self, name))
        for name in _BOOLEANS:
            _check_type(name, getattr(self, name), (bool,), "true or false")
        _check_type("top_k", self.top_k, (int, type(None)), "a whole number")
        for name in ("threads", "store_tokens"):
            _check_type(name, getattr(self, name), (int,), "a whole number")
        for name in ("alpha", "temperature"):
            _check_type(name, getattr(self, name), (int, float, type(None)), "a number")
        _check_type("log_seconds", self.log_seconds, (int, float), "a number")
        if self.draft is not None and self.draft not in UNUSED:
            raise ValueError(
                f"{CONFIG_KEY}: draft is {self.draft!r}; expected one of {', '.join(UNUSED)}"
            )
        unknown = [name for name in self.sources or () if name not in SOURCES]
        if unknown or (self.sources is not None and not self.sources):
            found = repr(unknown[0]) if unknown else "none"
            raise ValueError(f"{CONFIG_KEY}: sources has {found}; expected of {', '.join(SOURCES)}")
        if self.store is None:
            self.refuse(("store_tokens",), "without the option store nothing is kept")
        if self.store_tokens < _LEAST_STORE:
            raise ValueError(
                f"{CONFIG_KEY}: store_tokens is {self.store_tokens}; expected {_LEAST_STORE} "
                "or more"
            )
        for name in ("threads", "log_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{CONFIG_KEY}: {name} is {getattr(self, name)}; expected 0 or more"
                )

    def check_used(self, draft: str) -> None:
        """Raise ValueError for an option that a draft form does not use."""
        for name in UNUSED[draft]:
            used = " or ".join(repr(one) for one in UNUSED if name not in UNUSED[one])
            self.refuse((name,), f"which is for draft {used}, not {draft!r}")

    def refuse(self, names: Collection[str], reason: str) -> None:
        """Raise ValueError with a reason if one of some options is not the default."""
        for one in fields(self):
            if one.name in names and getattr(self, one.name) != one.default:
                raise ValueError(f"{CONFIG_KEY}: {one.name} is given, {reason}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any] | None) -> DrafterOptions:
        """The options of a JSON object.

        Raises:
            TypeError: not an object, an unknown option, or as the class.
            ValueError: as the class.
        """
        if not isinstance(values, Mapping):
            found = "additional_config has none" if values is None else f"options are {values!r}"
            raise TypeError(
                f"{CONFIG_KEY}: {found}; expected an object of this name: {{}} drafts from the "
                'text so far, {"directory": "/path/of/the/drafter"} with a drafter too; such as '
                "--additional-config '{\"lattice_bpd\": {}}'"
            )
        known = [one.name for one in fields(cls)]
        unknown = [name for name in values if name not in known]
        if unknown:
            near = difflib.get_close_matches(str(unknown[0]), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise TypeError(
                f"{CONFIG_KEY}: unknown option {unknown[0]!r}; {hint}expected {', '.join(known)}"
            )
        return cls(**values)


def _check_type(name: str, value: Any, types: tuple[type, ...], expected: str) -> None:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"{CONFIG_KEY}: {name} is {value!r}; expected {expected}")


def _check_strings(name: str, value: Any) -> None:
    """Raise TypeError unless a value is a list of strings, None, or for "lm" a string."""
    is_list = isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
    if not (value is None or is_list or (name == "lm" and isinstance(value, str))):
        expected = "a file, or a list of files" if name == "lm" else "a list of strings"
        raise TypeError(f"{CONFIG_KEY}: {name} is {value!r}; expected {expected}")
