"""What drafting would have done for texts that the target has generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.draft.gates import Examples, Gates
from lattice_bpd.draft.mixture import make_mixture, source_names
from lattice_bpd.lm.ngram import NGramLM


@dataclass
class KnownText:
    """A text that the target has generated.

    Attributes:
        token_ids: (T,) ints, prompt and output.
        prompt_length: tokens of the prompt, 1 or more.
        candidates: token ids (n, H, k) int32 and log probabilities (n, H, k) float32 of the heads
            after each of the n = T - prompt_length output tokens; None: no heads.
    """

    token_ids: Sequence[int]
    prompt_length: int
    candidates: tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]] | None = None


@dataclass
class ReplayResult:
    """What drafting would have done for one text.

    Attributes:
        tokens: decoded tokens.
        sizes: draft tokens of each verifying call; the call of the prompt is not among them.
        examples: for `fit_gates`: bins, active sources, probabilities by source; None: no drafts.
    """

    tokens: int
    sizes: list[int]
    examples: Examples | None

    @property
    def calls(self) -> int:
        """Calls of the target, with that of the prompt."""
        return len(self.sizes) + 1


def replay_text(
    mixture: _core.Mixture,
    text: KnownText,
    *,
    max_nodes: int = 16,
    is_chain: bool = False,
    times: npt.NDArray[np.float64] | None = None,
) -> ReplayResult:
    """Draft for a text whose tokens are known, without its target.

    Args:
        mixture: the sources.
        text: the text.
        max_nodes: N, the most draft tokens of a call.
        is_chain: whether to draft a single path.
        times: (max_nodes + 1,) float, seconds of a call by its draft tokens, which then decide how
            many there are; None: always N.
    """
    token_ids, first = list(text.token_ids), text.prompt_length
    drafts = _core.MixtureText(mixture)
    drafts.keep_examples()
    done = min(first + 1, len(token_ids))
    drafts.append(token_ids[:done])
    sizes = []
    while done < len(token_ids):
        ids = log_probs = None
        if text.candidates is not None:
            row = slice(done - first - 1, done - first)
            ids, log_probs = text.candidates[0][row], text.candidates[1][row]
        tree = _core.search_mixtures(
            [drafts], [len(token_ids) - done], max_nodes, is_chain, ids, log_probs, None, times
        )[0]
        node, accepted = 0, 0
        while done + accepted < len(token_ids):
            node = tree.child(node, token_ids[done + accepted])
            if node < 0:
                break
            accepted += 1
        step = min(accepted + 1, len(token_ids) - done)
        drafts.append(token_ids[done : done + step])
        done += step
        sizes.append(len(tree) - 1)
    return ReplayResult(len(token_ids) - first, sizes, drafts.examples())


def fit_to_texts(
    vocab_size: int,
    lms: Sequence[NGramLM],
    texts: Sequence[KnownText],
    *,
    text: bool = True,
    max_nodes: int = 16,
    rounds: int = 2,
) -> Gates:
    """Gates fitted to texts as they are drafted for: each round drafts with those of the last.

    Args:
        vocab_size: V of the target.
        lms: n-gram LMs, trained on other texts.
        texts: with candidates, if heads are a source.
        text: whether the text so far is a source.
        max_nodes: N of the drafts.
        rounds: 1 or more.
    """
    heads = any(one.candidates is not None for one in texts)
    gates = Gates.default(source_names(len(lms), heads=heads, text=text, store=False))
    anchor = gates.weights
    for _ in range(rounds):
        mixture = make_mixture(vocab_size, lms, heads=heads, text=text, store=None, gates=gates)
        results = [replay_text(mixture, one, max_nodes=max_nodes) for one in texts]
        gates = gates.fit([one.examples for one in results], anchor)
    return gates
