"""Texts of an engine's requests, as a mixture's drafts read them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core


class _Text(NamedTuple):
    """A request's text; its tokens too, where `finish` receives them."""

    drafts: _core.MixtureText
    tenant: str
    token_ids: list[int]


class RequestTexts:
    """A `MixtureText` for each request, by the engine's name of it.

    Args:
        mixture_of: the sources of a tenant.
        finish: receives tenant and text (T,) of each request that ended; None: they are dropped.
    """

    def __init__(
        self,
        mixture_of: Callable[[str], _core.Mixture],
        finish: Callable[[str, npt.NDArray[np.int32]], None] | None = None,
    ) -> None:
        self._mixture_of, self._finish = mixture_of, finish
        self._texts: dict[str, _Text] = {}

    def update(
        self, names: Sequence[str], token_ids: Sequence[Any], tenants: Sequence[str] | None = None
    ) -> list[_core.MixtureText]:
        """The texts of requests, up to date; new tokens teach their gates.

        Args:
            names: (B,) of the requests.
            token_ids: (B,) their texts, (T,) ints each, the exact token last.
            tenants: (B,) tenant of each; None: all are of one.
        """
        texts = []
        for n, (name, tokens) in enumerate(zip(names, token_ids, strict=True)):
            text = self._texts.get(name)
            if text is None or len(text.drafts) > len(tokens):
                tenant = "" if tenants is None else tenants[n]
                drafts = _core.MixtureText(self._mixture_of(tenant))
                text = self._texts[name] = _Text(drafts, tenant, [])
            new = tokens[len(text.drafts) :].tolist()
            text.drafts.append(new)
            if self._finish is not None:
                text.token_ids.extend(new)
            texts.append(text.drafts)
        return texts

    def forget(self, active: Container[str]) -> None:
        """Drop the texts of requests that ended."""
        for name in [name for name in self._texts if name not in active]:
            text = self._texts.pop(name)
            if self._finish is not None:
                self._finish(text.tenant, np.array(text.token_ids, np.int32))

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._texts)
