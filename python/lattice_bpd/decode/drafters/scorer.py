"""Drafts with any transition scorer, and handling of scorers that fail.

A wrong score costs time but does not change the output. If a scorer raises, or returns NaN or
another shape, the step drafts with the heads alone, a warning names the scorer once, and
`DecodeStats.scorer_failures` counts the step.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits, find_candidates
from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig, check_used
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.rescore import rescore_lattice
from lattice_bpd.draft.scorers.beam import ScorerError, search_drafts
from lattice_bpd.draft.scorers.ngram import as_scorer
from lattice_bpd.draft.scorers.protocol import TransitionScorer, vocab_size_of
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.vocabulary import check_same_ids


class ScorerWarning(UserWarning):
    """A scorer failed and the heads alone drafted; the message has scorer and reason."""


class ScorerDrafter(Drafter):
    """The best paths through the top-k lattice under heads + alpha * scorer, slot by slot.

    With one draft and a neural LM: local rescoring, paper algorithm 2. For an n-gram LM alone
    `PBestDrafter` is exact and faster.

    Args:
        scorer: a TransitionScorer, an NGramLM, or a causal LM of `transformers`.
        config: options; None: the defaults with one draft. Strategy "neural" drafts one path.
        timeout: limit of the scorer's time per step, in seconds; None: no limit. With a timeout it
            runs in a thread of its own. If a step exceeds it, the step counts as "slow", its
            thread is abandoned, and this drafter does not call the scorer again.
        options: by name, instead of the config's: top_k, num_drafts, alpha, beam; see
            `DraftConfig`.

    Attributes:
        dropped: whether the scorer exceeded the timeout and is no longer called.

    Raises:
        TypeError: scorer is not one of these.
        ValueError: options out of range, or of other strategies.
    """

    def __init__(
        self,
        scorer: Any,
        config: DraftConfig | None = None,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        self.scorer = _to_scorer(scorer)
        config = config or DraftConfig("p_best", num_drafts=1)
        self.config = config = DraftConfig.make("ScorerDrafter", config, options)
        check_used("ScorerDrafter", "p_best", options)
        self.num_drafts = 1 if config.strategy == "neural" else config.num_drafts
        if config.beam is not None and config.beam < self.num_drafts:
            raise ValueError(
                f"ScorerDrafter: beam is {config.beam} for {self.num_drafts} drafts; expected at "
                "least as many"
            )
        if timeout is not None and not timeout > 0.0:
            raise ValueError(f"ScorerDrafter: timeout is {timeout}; expected seconds above 0")
        self.timeout, self.dropped = timeout, False
        self._worker: Worker | None = None
        self._warned = False

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of p drafts for each state.

        Raises:
            ValueError: the scorer's vocabulary is not the target's, or top_k exceeds it.
        """
        self._check_vocabulary(states[0].model.vocab_size)
        logits = batch_head_logits(states)
        with states[0].stats.stage("top_k"):
            candidates, _ = find_candidates(states, logits, self.config.top_k, "ScorerDrafter")
        contexts = [state.tokens for state in states]
        with states[0].stats.stage("rescore"):
            if self.dropped:
                _count(states, "dropped")
                drafts = self._by_heads(candidates, contexts)
            else:
                try:
                    drafts = self._search(candidates, contexts)
                except Exception as error:  # any error of a scorer: drafts do not affect the output
                    self._note(error, states)
                    drafts = self._by_heads(candidates, contexts)
            return _build_trees(drafts, states)

    def _search(self, candidates: Candidates, contexts: list[list[int]]) -> Drafts:
        def search() -> Drafts:
            return search_drafts(
                candidates,
                contexts,
                self.scorer,
                num_drafts=self.num_drafts,
                alpha=self.config.alpha,
                beam=self.config.beam,
            )

        if self.timeout is None:
            return search()
        if self._worker is None:
            self._worker = Worker()
        drafts: Drafts = self._worker.run(search, self.timeout)
        return drafts

    def _by_heads(self, candidates: Candidates, contexts: list[list[int]]) -> Drafts:
        last = [context[-1:] for context in contexts]
        return rescore_lattice(candidates, last, None, num_drafts=self.num_drafts)

    def _check_vocabulary(self, wanted: int) -> None:
        size = vocab_size_of(self.scorer)
        if size is not None:
            check_same_ids("ScorerDrafter", "scorer", size, wanted)

    def _note(self, error: Exception, states: Sequence[DecodeState]) -> None:
        """Count a failure, and warn about the first."""
        kind = error.kind if isinstance(error, ScorerError) else "error"
        after = "steps in which it fails are drafted by the heads alone"
        if isinstance(error, SlowScorerError):
            kind, self.dropped = "slow", True
            after = "it is no longer called, and the heads alone draft from now on"
        _count(states, kind)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"ScorerDrafter: {type(self.scorer).__name__} failed ({kind}: {error}); {after}; "
                "the output stays the target's own",
                ScorerWarning,
                stacklevel=4,
            )


class SlowScorerError(Exception):
    """A scorer exceeded its timeout."""


class Worker:
    """A thread that runs one call at a time; one that hangs does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="lattice-bpd scorer").start()

    def run(self, call: Callable[[], Any], timeout: float) -> Any:
        """Returns or raises what the call does.

        Raises:
            SlowScorerError: it took longer than `timeout` seconds; this worker must not be used
                again.
        """
        self._calls.put(call)
        try:
            answer, error = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise SlowScorerError(f"a step took longer than {timeout:g} s") from None
        if error is not None:
            raise error
        return answer

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._answers.put((call(), None))
            except Exception as error:  # raised in `run`
                self._answers.put((None, error))


def _count(states: Sequence[DecodeState], kind: str) -> None:
    for state in states:
        state.stats.count_scorer_failure(kind)


def _to_scorer(scorer: Any) -> TransitionScorer:
    if isinstance(scorer, (PreTrainedModel, BlockwiseLM)):
        return NeuralScorer(scorer)
    return as_scorer(scorer)


def _build_trees(drafts: Drafts, states: Sequence[DecodeState]) -> list[PrefixTree]:
    """The drafts of each row as a tree; counts repeated tokens of the first draft."""
    trees = []
    for row, state in enumerate(states):
        lists = drafts.token_ids[row, : int(drafts.counts[row]), : state.max_draft_length]
        tree = PrefixTree.from_drafts(state.tokens[-1], lists)
        state.stats.add_repeats(*tree.count_repeats())
        trees.append(tree)
    return trees
