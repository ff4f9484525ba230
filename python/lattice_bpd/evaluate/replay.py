"""Record once, replay often: block efficiencies of many settings without calling the target again.

What a drafter proposes at a position depends on the text so far and on the heads there, and since
decoding is lossless the text is always greedy's. So the heads' candidates are recorded at every
position of greedy's output, every position is rescored in one batch, and a walk along the accepted
lengths gives the calls that decoding would make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lattice_bpd import NGramLM, rescore_lattice, rescore_tree
from lattice_bpd.evaluate.settings import DraftOptions, Setting
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.models import BlockwiseLM

REPLAYED = ("bpd", "lattice", "tree", "oracle")
_CONTEXT = 8  # tokens kept before a lattice: more than any LM's history


@dataclass(frozen=True)
class Recording:
    """Greedy outputs with the heads' candidates at all P positions of all texts.

    Attributes:
        candidates: (P, H, k); those at a position start from the state that gave its exact token.
        contexts: P contexts, each ending in the exact token of its position.
        wanted: (P, H) int64, what greedy wrote behind each exact token; -1 behind the end.
        lengths: decoded tokens of each text; they sum to P.
    """

    candidates: Candidates
    contexts: list[list[int]]
    wanted: npt.NDArray[np.int64]
    lengths: list[int]

    def block_efficiency(
        self, setting: Setting, lm: NGramLM | None, options: DraftOptions
    ) -> float:
        """Decoded tokens / target calls that decoding with this setting has.

        Args:
            setting: of strategy "bpd", "lattice", "tree" or "oracle".
            lm: n-gram LM; where the setting names a source, that one.
            options: of the setting; top_k at most that of the recording.

        Raises:
            ValueError: a strategy that is not replayed, options out of range, or an LM of another
                vocabulary.
        """
        if setting.strategy not in REPLAYED:
            raise ValueError(
                f"replay: setting {setting.name!r} has strategy {setting.strategy!r}; expected one "
                f"of {', '.join(REPLAYED)}; decode the others with compare_strategies"
            )
        used = lm if setting.uses_lm or setting.source else None
        accepted = self._accepted(setting, used, options)
        calls = start = 0
        for length in self.lengths:
            calls += 1  # reads the prompt and gives the first exact token
            place = 0
            while place < length - 1:
                place += int(accepted[start + place]) + 1
                calls += 1
            start += length
        return sum(self.lengths) / calls

    def _accepted(
        self, setting: Setting, lm: NGramLM | None, options: DraftOptions
    ) -> npt.NDArray[np.int64]:
        """(P,) draft tokens that a call at each position accepts."""
        token_ids, scores = self.candidates.token_ids, self.candidates.scores
        found = Candidates(
            np.ascontiguousarray(token_ids[..., : options.top_k]),
            np.ascontiguousarray(scores[..., : options.top_k]),
        )
        if setting.strategy == "bpd":
            return self._agreeing(token_ids[:, None, :, 0])
        if setting.strategy == "oracle":
            holds = (found.token_ids == self.wanted[..., None]).any(axis=-1)
            return np.asarray(holds.cumprod(axis=-1).sum(axis=-1), np.int64)
        if setting.strategy == "lattice":
            drafts = rescore_lattice(
                found,
                self.contexts,
                lm,
                num_drafts=options.num_drafts if setting.many else 1,
                alpha=options.alpha,
            )
            return self._agreeing(drafts.token_ids)
        tempered = replace(found, scores=found.scores / np.float32(options.temperature))
        tree = rescore_tree(
            tempered,
            self.contexts,
            lm,
            max_nodes=options.max_nodes,
            alpha=options.alpha / options.temperature,
        )
        nodes = tree.leaf_paths  # (P, leaves, H)
        tokens = np.take_along_axis(tree.token_ids[:, None], np.maximum(nodes, 0), axis=-1)
        return self._agreeing(np.where(nodes >= 0, tokens, -2))

    def _agreeing(self, drafts: Any) -> npt.NDArray[np.int64]:
        """(P,) the longest agreement of drafts (P, p, H) with what greedy wrote."""
        agrees = np.asarray(drafts) == self.wanted[:, None]
        return np.asarray(agrees.cumprod(axis=-1).sum(axis=-1).max(axis=-1), np.int64)


@torch.inference_mode()
def record(
    model: BlockwiseLM,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    *,
    top_k: int = 16,
) -> Recording:
    """Read greedy's outputs once and keep the heads' candidates.

    Args:
        model: target and heads.
        prompts: token ids.
        outputs: greedy's output behind each prompt, one token or more.
        top_k: k, the most that a replay may use.

    Returns:
        Recording.
    """
    ids, scores, contexts, wanted = [], [], [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = [*prompt, *output]
        places = torch.arange(len(prompt) - 1, len(tokens) - 1)[None].to(model.device)
        text = torch.tensor([tokens[:-1]], device=model.device)
        logits = model(text, head_positions=places).head_logits
        assert logits is not None
        found = select_top_k(logits[0], top_k, log_softmax=False, where="record")
        ids.append(found.token_ids)
        scores.append(found.scores)
        for place in range(len(prompt), len(tokens)):
            contexts.append(tokens[max(0, place + 1 - _CONTEXT) : place + 1])
            behind = tokens[place + 1 : place + 1 + model.num_slots]
            wanted.append(behind + [-1] * (model.num_slots - len(behind)))
    candidates = Candidates(np.concatenate(ids), np.concatenate(scores))
    return Recording(candidates, contexts, np.array(wanted), [len(output) for output in outputs])
