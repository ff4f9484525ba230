"""Parsing of acceptance rules given as text, such as `specdec++:3,1.0`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from lattice_bpd.verify.acceptance.rule import Acceptance, Exact
from lattice_bpd.verify.acceptance.rules import (
    SpecDecPlusPlus,
    TopKMatch,
    Typical,
)
from lattice_bpd.verify.acceptance.sampling import Rejection, Sampled

Maker = Callable[..., Acceptance]


def parse_acceptance(text: str) -> Acceptance:
    """The rule that a text names.

        exact      top_k:4      typical:0.09,0.3      specdec++:3,1.0
        sampled:0.8,top_p=0.95,seed=1      rejection:0.8

    Args:
        text: name, then a colon and its numbers; the last ones are optional where the rule has
            defaults. Sampling rules also take top_k=, top_p=, min_p= and seed=, and rejection takes
            lenience=.

    Returns:
        The rule; `str` of it gives the text again.

    Raises:
        ValueError: an unknown name, or numbers that are missing, too many or out of range.
    """
    name, _, rest = text.strip().partition(":")
    if name not in _RULES:
        near = difflib.get_close_matches(name, _RULES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"acceptance: unknown rule {name!r}; {hint}expected one of {', '.join(_RULES)}"
        )
    make, kinds, needed, example = _RULES[name]
    words = rest.split(",") if rest else []
    named = [word.partition("=")[::2] for word in words if "=" in word]
    words = [word for word in words if "=" not in word]
    if not needed <= len(words) <= len(kinds):
        raise ValueError(
            f"acceptance: {text!r} has {len(words)} numbers after {name!r}; expected "
            f"{needed if needed == len(kinds) else f'{needed}..{len(kinds)}'}, such as "
            f"{example}"
        )
    try:
        numbers = [kind(word) for kind, word in zip(kinds, words, strict=False)]
        options = {key: _SAMPLING.get(key, str)(value) for key, value in named}
        return make(*numbers, **options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"acceptance: {text!r}: {error}; such as {example}") from error


# of each rule: the class, the types of its numbers, how many have no default, an example
_RULES: dict[str, tuple[Maker, Sequence[Callable[[str], float]], int, str]] = {
    Exact.name: (Exact, (), 0, "exact"),
    TopKMatch.name: (TopKMatch, (int,), 1, "top_k:4"),
    SpecDecPlusPlus.name: (SpecDecPlusPlus, (int, float), 0, "specdec++:3,1.0"),
    Typical.name: (Typical, (float, float), 0, "typical:0.09,0.3"),
    Sampled.name: (Sampled, (float,), 0, "sampled:0.8,top_p=0.95,seed=1"),
    Rejection.name: (Rejection, (float,), 0, "rejection:0.8,seed=1"),
}

_SAMPLING: dict[str, Callable[[str], float]] = {
    "top_k": int, "top_p": float, "min_p": float, "seed": int, "lenience": float,
}  # fmt: skip
