"""One draft for each request from a gated mixture of heads, n-gram LMs and texts."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

from lattice_bpd import _core
from lattice_bpd.draft.mixture import Gates, make_mixture, source_names
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import select_top_k, use_torch_threads
from lattice_bpd_vllm.batch import DraftBatch, EngineStep
from lattice_bpd_vllm.draft_lengths import Calibration, DraftLengths, WholeDrafts
from lattice_bpd_vllm.drafting import Chains
from lattice_bpd_vllm.files import DrafterParts
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
        lengths: how many tokens are drafted.
        served: texts served before, a source too; None: without.

    Attributes:
        lengths: how many tokens are drafted.
        texts: of the requests.

    Raises:
        ValueError: more than 4 LMs.
    """

    def __init__(
        self,
        parts: DrafterParts,
        vocab_size: int,
        threads: int,
        lengths: DraftLengths | WholeDrafts,
        served: ServedTexts | None = None,
    ) -> None:
        sources, gates, heads = parts.config.sources, parts.gates, parts.heads is not None
        text = sources is None or "text" in sources
        names = source_names(len(parts.lms), heads=heads, text=text, store=served is not None)
        if gates is None or gates.sources != names:
            gates = Gates.default(names)
        make = partial(make_mixture, vocab_size, parts.lms, heads=heads, text=text, gates=gates)
        if served is None:
            mixture = make(store=None)
            self.texts = RequestTexts(lambda _: mixture)
        else:
            self.texts = RequestTexts(
                lambda tenant: make(store=served.store_of(tenant)), served.add
            )
        self.lengths, self._calibration = lengths, Calibration()
        self._top_k, self._threads = parts.config.top_k, threads
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
        self._calibration.observe(step)
        updated = time.perf_counter()
        texts = self.texts.update(step, batch)
        start += time.perf_counter() - updated  # new prompts are no cost of each step
        most, costs = self.lengths.limits(len(step.kept), max(batch.max_lengths))
        trees = _core.search_mixtures(
            texts, [min(length, most) for length in batch.max_lengths], most, True, *candidates,
            costs=costs, threads=self._threads if len(texts) >= _THREADED else 1,
        )  # fmt: skip
        probs = [_probs(tree) for tree in trees]
        lengths = self.lengths.choose(
            [self._calibration.adjust(one) for one in probs],
            len(step.kept),
            time.perf_counter() - start,
            with_slots=slots is not None,
        )
        chosen = list(zip(batch.requests, trees, probs, lengths, strict=True))
        self._calibration.note({step.names[request]: one[:n] for request, _, one, n in chosen})
        return [tree.token_ids[1 : 1 + n] for _, tree, _, n in chosen]

    def _candidates(self, slots: Any) -> tuple[Any, Any, Any]:
        if slots is None:
            return None, None, None
        if isinstance(slots, LatticeInput):
            return slots.cut(slots.num_slots, self._top_k).to_source_scores(_WHERE)
        best = select_top_k(
            slots, self._top_k, log_softmax=True, where=_WHERE, threads=self._threads
        )
        return best.token_ids, best.scores, None


def _probs(tree: _core.PrefixTree) -> list[float]:
    """The probabilities of a chain's prefixes."""
    log_probs = tree.log_probs
    assert log_probs is not None  # a search gives them
    return [math.exp(one) for one in log_probs.tolist()]
