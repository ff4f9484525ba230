"""One draft for each request from a gated mixture of heads, n-gram LMs and texts."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from lattice_bpd import _core
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import make_mixture, source_names
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import select_top_k, use_torch_threads
from lattice_bpd_vllm.batch import DraftBatch, EngineStep
from lattice_bpd_vllm.drafting import Chains
from lattice_bpd_vllm.files import DrafterParts
from lattice_bpd_vllm.predictions import add_predictions
from lattice_bpd_vllm.request_texts import RequestTexts
from lattice_bpd_vllm.served_texts import ServedTexts

_WHERE = "MixtureChains"
_THREADED = 32  # requests from which on several threads search


class MixtureChains:
    """Chains of the most probable next tokens of a mixture, as long as pays.

    Args:
        parts: sources, and gates if they are for these sources.
        vocab_size: V of the target.
        threads: of top-k and search, 0 for all cores.
        lengths: how many tokens are drafted; None: as many as the engine verifies.
        served: texts served before, a source too; None: without.
        has_logits: whether the engine shows the target's logits, whose predictions are a source.
        logger: says which gates are taken where none are of these sources.

    Attributes:
        lengths: see above.
        texts: of the requests.
        reads_predictions: whether `EngineStep.predictions` are a source.

    Raises:
        ValueError: more than 4 LMs.
    """

    def __init__(
        self,
        parts: DrafterParts,
        vocab_size: int,
        threads: int,
        lengths: _core.DraftLengths | None,
        served: ServedTexts | None = None,
        *,
        has_logits: bool = False,
        logger: logging.Logger,
    ) -> None:
        sources, heads = parts.config.sources, parts.heads is not None
        text = sources is None or "text" in sources
        target = has_logits and (sources is None or "target" in sources)
        names = source_names(
            len(parts.lms), heads=heads, text=text, store=served is not None, target=target
        )
        gates = Gates.fitting(parts.gates, names, logger)
        make = partial(
            make_mixture, vocab_size, parts.lms, heads=heads, text=text, target=target, gates=gates
        )
        self.reads_predictions, self._vocab_size = target, vocab_size
        if served is None:
            mixture = make(store=None)
            self.texts = RequestTexts(lambda _: mixture)
        else:
            self.texts = RequestTexts(
                lambda tenant: make(store=served.store_of(tenant)), served.add
            )
        self.lengths, self._top_k, self._threads = lengths, parts.config.top_k, threads
        use_torch_threads()

    def propose(self, slots: Any, step: EngineStep, batch: DraftBatch, start: float) -> Chains:
        """A draft for each request to draft for.

        Args:
            slots: logits (B, H, V) float, numpy or torch on any device, or a LatticeInput of B
                lattices; None: without heads.
            step: of the engine.
            batch: the B requests. Drafts may pass the last slot.
            start: when drafting for the step began, in seconds.

        Returns:
            B lists of at most `batch.max_lengths` token ids.

        Raises:
            ValueError: NaN or +inf in the logits, or top_k above V.
        """
        candidates = self._candidates(slots)
        own_seconds = time.perf_counter() - start  # new prompts are no cost of each step
        texts = self.texts.update(step, batch)
        add_predictions(texts, step, batch, self._vocab_size)
        threads = self._threads if len(texts) >= _THREADED else 1
        if self.lengths is None:
            trees = _core.search_mixtures(
                texts, batch.max_lengths, max(batch.max_lengths), True, *candidates, threads=threads
            )
            return [tree.token_ids[1:] for tree in trees]
        return self.lengths.draft(
            texts, batch.requests, batch.max_lengths, *candidates, own_seconds, threads
        )

    def _candidates(self, slots: Any) -> tuple[Any, Any, Any]:
        if slots is None:
            return None, None, None
        if isinstance(slots, LatticeInput):
            return slots.cut(slots.num_slots, self._top_k).to_source_scores(_WHERE)
        best = select_top_k(
            slots, self._top_k, log_softmax=True, where=_WHERE, threads=self._threads
        )
        return best.token_ids, best.scores, None
