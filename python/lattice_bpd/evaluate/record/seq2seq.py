"""Recording of encoder-decoders: greedy outputs of sources, and the heads along them.

The texts replay, sweep and tune like those of causal models: `Recording(record_sources(..))`. Their
prompt is the decoder's, since that is what drafts see; the source acts through the heads alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lattice_bpd.decode.drafters.argmax import ArgmaxDrafter
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.evaluate.record.texts import RecordedText
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.verify.seq2seq_target import Seq2SeqTarget


def record_sources(
    target: Any,
    heads: Any,
    sources: Sequence[Sequence[int]],
    *,
    top_k: int = 16,
    max_new_tokens: int = 64,
    on_text: Callable[[], None] | None = None,
) -> list[RecordedText]:
    """Decode sources greedily and keep the heads' candidates at every position of the outputs.

    Args:
        target: an encoder-decoder of `transformers` or a Seq2SeqTarget; outputs end after its stop
            tokens.
        heads: such as SpecDrafterHeads; see `lattice_bpd.decode.generate`.
        sources: token ids of each.
        top_k: k, candidates kept of each slot, 1..V.
        max_new_tokens: most tokens of an output.
        on_text: called after each source.

    Returns:
        A text for each source, with its index as `name`.

    Raises:
        TypeError: not an encoder-decoder.
        ValueError: no source, no heads, or numbers out of range.
    """
    model = DraftingModel(target, heads)
    if not isinstance(model.target, Seq2SeqTarget):
        raise TypeError(
            f"record_sources: {type(model.target.base).__name__} is no encoder-decoder; use "
            "write_record or record"
        )
    if not sources or model.heads is None or not 1 <= top_k <= model.vocab_size:
        raise ValueError(
            f"record_sources: {len(sources)} sources, heads {heads!r}, top_k {top_k}; expected one "
            f"source or more, heads, and 1..{model.vocab_size}"
        )
    texts = []
    for number, source in enumerate(sources):
        result = decode(
            model, source, ArgmaxDrafter(), max_new_tokens=max_new_tokens,
            stop_token_ids=model.target.stop_token_ids,
        )  # fmt: skip
        texts.append(
            _record(
                model, source, result.token_ids, top_k, max_new_tokens, finish=result.finish,
                name=str(number),
            )
        )  # fmt: skip
        if on_text is not None:
            on_text()
    return texts


@torch.inference_mode()
def _record(
    model: DraftingModel, source: Sequence[int], output: list[int], top_k: int, limit: int,
    **about: Any,
) -> RecordedText:  # fmt: skip
    """Read one output, in a call for the decoder's prompt and one for the rest."""
    target: Any = model.target
    prompt = list(target.decoder_prompt)
    encoded = target.encode([source])
    first, cache = target.read_prompts(torch.tensor([prompt], device=model.device), source=encoded)
    logits, hidden = [first.logits[0]], [first.hidden[0]]
    if len(output) > 1:
        rest = target(torch.tensor([output[:-1]], device=model.device), cache)
        logits, hidden = [*logits, rest.logits[0]], [*hidden, rest.hidden[0]]
    own, states = torch.cat(logits).float(), torch.cat(hidden)
    state = DecodeState(
        model, list(prompt), len(prompt), states[0], limit, DecodeStats(), source=encoded
    )
    token_ids, scores, entropies = [], [], [_entropies(own)[:, None]]
    slots = []
    for index, token in enumerate(output):
        state.tokens.append(token)
        state.hidden = states[index]
        of_slots = batch_head_logits([state], all_slots=True)
        top = select_top_k(of_slots, top_k, log_softmax=False, where="record_sources")
        token_ids.append(top.token_ids)
        scores.append(top.scores)
        slots.append(_entropies(of_slots))
    entropies.append(np.concatenate(slots))
    if model.max_positions is not None:
        limit = min(limit, model.max_positions - len(prompt) + 1)
    return RecordedText(
        np.array(prompt, np.int32), np.array(output, np.int32), limit, np.concatenate(token_ids),
        np.concatenate(scores), np.concatenate(entropies, axis=1), _margins(own, output), **about,
    )  # fmt: skip


def _entropies(logits: torch.Tensor) -> Any:
    """Of each distribution (.., V), in nats."""
    return torch.special.entr(logits.float().softmax(dim=-1)).sum(dim=-1).cpu().numpy()


def _margins(logits: torch.Tensor, output: Sequence[int]) -> Any:
    """(m,) float32: the logit of each token of the output minus the best other one's."""
    tokens = torch.tensor(list(output), device=logits.device)[:, None]
    chosen = logits.gather(1, tokens)[:, 0]
    others = logits.scatter(1, tokens, float("-inf")).amax(dim=1)
    return (chosen - others).cpu().numpy()
