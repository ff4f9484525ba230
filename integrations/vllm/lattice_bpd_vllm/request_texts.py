"""Texts of an engine's requests, as a mixture's drafts read them."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd_vllm.batch import DraftBatch, EngineStep


@dataclass(slots=True)
class _Text:
    """A request's text and its length; its tokens too, where `finish` receives them."""

    drafts: _core.MixtureText
    tenant: str
    length: int = 0
    token_ids: list[int] = field(default_factory=list)


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

    def update(self, step: EngineStep, batch: DraftBatch) -> list[_core.MixtureText]:
        """The texts of a batch's requests, up to date; new tokens teach their gates.

        Those of requests that ended are dropped.
        """
        known, texts = self._texts, []
        if len(known) > len(step.active):
            self.forget(step.active)
        for request, length in zip(batch.requests, batch.lengths, strict=True):
            name, new = step.names[request], step.kept[request]
            text = known.get(name)
            if text is None or text.length > length:
                tenant = step.tenants[request] if step.tenants else ""
                drafts = _core.MixtureText(self._mixture_of(tenant))
                text = known[name] = _Text(drafts, tenant)
            if text.length + len(new) != length:  # a prompt, or steps without drafts
                new = step.token_ids[request, text.length : length].tolist()
            text.drafts.append(new)
            text.length = length
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

    def clear(self) -> None:
        """Drop the texts of all requests; those that continue are read again."""
        self._texts.clear()
