"""Texts of an engine's requests, as a mixture's drafts read them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from lattice_bpd import _core


class RequestTexts:
    """A `MixtureText` for each request, by the engine's name of it.

    Args:
        mixture: the sources.
    """

    def __init__(self, mixture: _core.Mixture) -> None:
        self._mixture = mixture
        self._texts: dict[str, _core.MixtureText] = {}

    def update(self, names: Sequence[str], token_ids: Sequence[Any]) -> list[_core.MixtureText]:
        """The texts of requests, up to date; new tokens teach their gates.

        Args:
            names: (B,) of the requests.
            token_ids: (B,) their texts, (T,) ints each, the exact token last.
        """
        texts = []
        for name, tokens in zip(names, token_ids, strict=True):
            text = self._texts.get(name)
            if text is None or len(text) > len(tokens):
                text = self._texts[name] = _core.MixtureText(self._mixture)
            text.append(tokens[len(text) :].tolist())
            texts.append(text)
        return texts

    def forget(self, active: Container[str]) -> None:
        """Drop the texts of requests that ended."""
        for name in [name for name in self._texts if name not in active]:
            del self._texts[name]

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._texts)
