"""Draft trees of an engine's requests, as the arrays that SGLang verifies; no SGLang needed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import make_mixture, source_names
from lattice_bpd_vllm.files import load_parts
from lattice_bpd_vllm.options import DrafterOptions
from lattice_bpd_vllm.served_texts import ServedTexts

OPTIONS = "LATTICE_BPD_SGLANG"
"""Environment variable with the options, a JSON object."""

_NAMES = ("directory", "lm", "sources", "store", "store_tokens", "threads")
_THREADED = 32  # requests from which on several threads search
_LOGGER = logging.getLogger(__name__)


class Request(NamedTuple):
    """A request of a batch.

    Attributes:
        name: of the request.
        length: tokens of its text.
        tail: its last tokens, 1 or more.
        text: all of them; called where the tail is not enough.
        tenant: whose served texts it is drafted from.
    """

    name: str
    length: int
    tail: Sequence[int]
    text: Callable[[], Sequence[int]]
    tenant: str = ""


class DraftTrees:
    """Trees of the most probable next tokens of a mixture, one of N nodes for each request.

    Args:
        options: of the drafter, see `read_options`.
        vocab_size: V of the target.
        num_nodes: N, the exact token's node included.

    Raises:
        OSError: a file cannot be read.
        ValueError: LMs, store or drafter.json of another vocabulary, or more than 4 LMs.
    """

    def __init__(self, options: DrafterOptions, vocab_size: int, num_nodes: int) -> None:
        parts = load_parts(options)
        if parts.vocab_size not in (None, vocab_size):
            raise ValueError(
                f"{OPTIONS}: {parts.vocab_source} has a vocabulary of {parts.vocab_size}, the "
                f"target of {vocab_size}; expected those of this target"
            )
        if num_nodes < 2:
            raise ValueError(
                f"trees have {num_nodes} nodes; expected --speculative-num-draft-tokens 2 or more"
            )
        served = None
        if options.store is not None:
            file = Path(options.store) if options.store else None
            served = ServedTexts(options.store_tokens, vocab_size, file)
        sources = parts.config.sources
        text = sources is None or "text" in sources
        names = source_names(len(parts.lms), heads=False, text=text, store=served is not None)
        gates = Gates.fitting(parts.gates, names)
        self._make = partial(
            make_mixture, vocab_size, parts.lms, heads=False, text=text, gates=gates
        )
        self._mixture = None if served else self._make(store=None)
        self._served, self._num_nodes, self._threads = served, num_nodes, options.threads
        self._texts: dict[str, _Text] = {}
        self._has_failed = False

    def draft(
        self, requests: Sequence[Request]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """A tree for each request.

        Node 0 is the last token of the text; parents precede their children, and siblings are
        different tokens. A tree with fewer nodes is continued after its last one, by drafts like
        others. An error costs the drafts of this batch; the first one is logged.

        Args:
            requests: (B,) of the batch.

        Returns:
            (B*N,) int64 token ids, and (B*N*N,) bool: whether node j is node i or above it.
        """
        count, size = len(requests), self._num_nodes
        try:
            trees = _core.search_mixtures(
                [self._read(one) for one in requests], [size - 1] * count, size - 1,
                threads=self._threads if count >= _THREADED else 1,
            )  # fmt: skip
        except Exception:
            if not self._has_failed:
                _LOGGER.exception("lattice-bpd: drafting failed; later errors are not logged")
            self._has_failed = True
            self.clear()
            trees = [_core.PrefixTree([one.tail[-1]], [-1]) for one in requests]
        token_ids: npt.NDArray[np.int64] = np.zeros((count, size), np.int64)
        parents = np.tile(np.arange(-1, size - 1), (count, 1))
        for row, tree in enumerate(trees):
            token_ids[row, : len(tree)], parents[row, : len(tree)] = tree.token_ids, tree.parents
        mask: npt.NDArray[np.bool_] = np.zeros((count, size, size), np.bool_)
        for node in range(size):
            if node:
                mask[:, node] = mask[np.arange(count), parents[:, node]]
            mask[:, node, node] = True
        return token_ids.ravel(), mask.ravel()

    def forget(self, names: Iterable[str]) -> None:
        """Drop the texts of requests that ended; they are kept as served texts."""
        for name in sorted(names):  # all ranks in the same order
            text = self._texts.pop(name, None)
            if text is not None and self._served is not None:
                self._served.add(text.tenant, np.array(text.token_ids, np.int32))

    def clear(self) -> None:
        """Drop the texts of all requests."""
        self._texts.clear()

    def _read(self, request: Request) -> _core.MixtureText:
        """The request's text, up to date."""
        text = self._texts.get(request.name)
        known = 0 if text is None else len(text.drafts)
        if text is None or known > request.length:
            mixture = self._mixture
            if mixture is None:
                assert self._served is not None
                mixture = self._make(store=self._served.store_of(request.tenant))
            text = _Text(_core.MixtureText(mixture), request.tenant, [])
            self._texts[request.name], known = text, 0
        new = request.length - known
        token_ids = request.tail if new <= len(request.tail) else request.text()
        added = list(token_ids[len(token_ids) - new :])
        text.drafts.append(added)
        if self._served is not None:
            text.token_ids.extend(added)
        return text.drafts


class _Text(NamedTuple):
    """A request's text; its tokens too, where they are kept as a served text."""

    drafts: _core.MixtureText
    tenant: str
    token_ids: list[int]


def read_options(environment: Mapping[str, str]) -> DrafterOptions:
    """The options of the environment variable `LATTICE_BPD_SGLANG`.

    Raises:
        TypeError: an option of another type, or an unknown one.
        ValueError: no JSON, or a value out of range.
    """
    text = environment.get(OPTIONS) or "{}"
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{OPTIONS}: {text!r} is no JSON ({error}); expected an object") from error
    unknown = [name for name in values if name not in _NAMES] if isinstance(values, dict) else []
    if unknown:
        raise TypeError(f"{OPTIONS}: option {unknown[0]!r}; expected some of {', '.join(_NAMES)}")
    options = replace(DrafterOptions.from_mapping(values), draft="mixture")
    if "heads" in (options.sources or ()):
        raise ValueError(f"{OPTIONS}: sources has 'heads', which are not read in SGLang")
    return options
