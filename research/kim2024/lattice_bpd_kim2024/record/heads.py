"""Reads greedy outputs once and keeps the heads' candidates at each position.

The target reads the complete output in one call, which gives the heads at all positions.

The texts replay, sweep and tune like those of causal models: `Recording(record_sources(..))`. Their
prompt is the decoder's, since that is what drafts see; the source acts through the heads alone.
`write_record` writes the same texts to a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lattice_bpd.build.call_costs import context_length, measure_costs, now, token_text
from lattice_bpd.decode.drafters.p_best import ArgmaxDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.decode.state.model import DraftingModel, HiddenStateHeads
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd_kim2024.record.texts import Float32Array, RecordedText, Transitions

if TYPE_CHECKING:
    import torch

    from lattice_bpd.decode.state.model import DraftingModel

SIZES = (0, 1, 4, 8, 12, 18, 24, 36, 54, 72, 108, 144)  # draft tokens of timed calls
ROUNDS = 15
_CHUNK_ELEMENTS = 1 << 24  # head logits computed at once: 64 MiB of float32


def record_text(
    model: DraftingModel,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    top_k: int,
    max_new_tokens: int | None = None,
    **about: Any,
) -> RecordedText:
    """Read one greedy output and keep the heads' candidates at each position.

    Args:
        model: target and heads.
        prompt: (T,) ints; for an encoder-decoder the source.
        output: (m,) ints, 1 or more, the target's greedy continuation of the prompt.
        top_k: k, 1..V.
        max_new_tokens: limit of decoding; None: m.
        about: further fields of RecordedText.

    Raises:
        ValueError: an empty prompt or output, or top_k outside 1..V.
    """
    import torch

    if len(prompt) == 0 or len(output) == 0:
        raise ValueError(
            f"record: a prompt of {len(prompt)} tokens with {len(output)} tokens of output; "
            "expected one or more of each"
        )
    limit = len(output) if max_new_tokens is None else max_new_tokens
    with torch.inference_mode():
        read = read_output(model, prompt, output)
        if model.max_positions is not None:
            limit = min(limit, model.max_positions - len(read.prompt) + 1)
        margins, own = _margins(read.logits, output), _entropies(read.logits)[:, None]
        lattices, others, gives_candidates = [], [], False
        for found in _read_heads(model, read, list(output)):
            if isinstance(found, LatticeInput):
                gives_candidates = True
                lattices.append(_to_host(found).best_first(top_k))
                found = found.to_logits(model.vocab_size)
            else:
                top = select_top_k(found, top_k, log_softmax=False, where="record")
                lattices.append(LatticeInput(top.token_ids, top.scores))
            others.append(_entropies(found))
    token_ids, scores = (
        np.concatenate([getattr(lattice, name) for lattice in lattices])
        for name in ("token_ids", "scores")
    )
    return RecordedText(
        np.array(read.prompt, np.int32), np.array(output, np.int32), limit, token_ids, scores,
        np.concatenate([own, np.concatenate(others)], axis=1), margins,
        transitions=_join_transitions(lattices) if gives_candidates else None,
        source=None if read.source is None else np.array(prompt, np.int32), **about,
    )  # fmt: skip


@dataclass(frozen=True)
class ReadOutput:
    """An output of m tokens as the target read it.

    Attributes:
        prompt: (T,) ints, of the decoder.
        logits: (m, V) float, that gave the output.
        hidden: (m, D) float, likewise.
        features: (T + m - 1, F) float, of heads that read several layers; else None.
        source: encoded source of an encoder-decoder; else None.
    """

    prompt: list[int]
    logits: torch.Tensor
    hidden: torch.Tensor
    features: torch.Tensor | None
    source: Any


def read_output(model: DraftingModel, prompt: Sequence[int], output: Sequence[int]) -> ReadOutput:
    """Read an output in two calls of the target, one for the prompt and one for the rest.

    Args:
        model: the target.
        prompt: (T,) ints; for an encoder-decoder the source.
        output: (m,) ints, 1 or more; the last one is not read.
    """
    import torch

    target: Any = model.target
    text, source = list(prompt), None
    cache: Any
    with torch.inference_mode():
        if target.decoder_prompt is not None:
            text, source = list(target.decoder_prompt), target.encode([list(prompt)])
            ids = torch.tensor([text], device=model.device)
            first, cache = target.read_prompts(ids, source=source)
        else:
            first, cache = target.read_prompts(torch.tensor([text], device=model.device))
        calls = [first]
        if len(output) > 1:
            ids = torch.tensor([list(output[:-1])], device=model.device)
            calls.append(target(ids, cache))
        features = [call.features[0] for call in calls if call.features is not None]
        return ReadOutput(
            text,
            torch.cat([call.logits[0] for call in calls]),
            torch.cat([call.hidden[0] for call in calls]),
            torch.cat(features) if features else None,
            source,
        )


def _margins(logits: torch.Tensor, output: Sequence[int]) -> Float32Array:
    """(m,) the logit of each token of the output minus the best other one's."""
    import torch

    tokens = torch.tensor(list(output), device=logits.device)
    own = logits.gather(1, tokens[:, None])[:, 0].float()
    best, ids = logits.topk(2, dim=1)
    others = torch.where(ids[:, 0] == tokens, best[:, 1], best[:, 0]).float()
    return np.asarray((own - others).cpu().numpy(), np.float32)


def _read_heads(
    model: DraftingModel, read: ReadOutput, output: Sequence[int]
) -> Iterator[torch.Tensor | LatticeInput]:
    """What the heads give at the m positions: logits (n, H, V), or a lattice of one position."""
    if not isinstance(model.heads, HiddenStateHeads):
        yield from read_states(model, read, output)
        return
    size = max(1, _CHUNK_ELEMENTS // ((model.num_slots or 8) * model.vocab_size))
    for start in range(0, len(output), size):
        yield head_logits(model, read.hidden[start : start + size], output[start : start + size])


def head_logits(
    model: DraftingModel, hidden: torch.Tensor, exact_tokens: Sequence[int]
) -> torch.Tensor:
    """Logits (n, H, V) of heads that read the last hidden state alone; sets `model.num_slots`.

    Args:
        model: target and heads.
        hidden: (n, D) float.
        exact_tokens: (n,) ints, the tokens that the target selected from them.

    Raises:
        ValueError: there are no such heads, or they return another shape.
    """
    if not isinstance(model.heads, HiddenStateHeads):
        raise ValueError(
            f"record: heads is a {type(model.heads).__name__} without num_slots; expected heads "
            "that have it, or a function of hidden states"
        )
    outputs = model.check_outputs(model.heads.logits(hidden, exact_tokens), len(hidden))
    return outputs.to_logits(model.vocab_size) if isinstance(outputs, LatticeInput) else outputs


def read_states(
    model: DraftingModel, read: ReadOutput, output: Sequence[int]
) -> Iterator[torch.Tensor | LatticeInput]:
    """What heads of any kind give after each token of the output in turn, as in decoding.

    Args:
        model: target and heads.
        read: the output as the target read it.
        output: (m,) ints.
    """
    limit, known = len(output), len(read.prompt)
    state = DecodeState(
        model, list(read.prompt), known, read.hidden[0], limit, DecodeStats(), source=read.source
    )
    for index, token in enumerate(output):
        state.tokens.append(token)
        state.hidden = read.hidden[index]
        if read.features is not None:
            state.features.append(read.features[0 if index == 0 else known - 1 : known])
        known += 1
        yield model.read_heads([state])


def time_calls(
    model: DraftingModel,
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    on_round: Callable[[], None] | None = None,
) -> dict[int, float]:
    """`measure_costs`, with the time of the heads where there are draft tokens."""
    costs, heads = measure_costs(model, sizes, rounds, on_round), time_heads(model, rounds)
    return {size: cost + (heads if size else 0.0) for size, cost in costs.items()}


def time_heads(model: DraftingModel, rounds: int = ROUNDS) -> float:
    """Median milliseconds of a call of the heads for one text, after the first; 0 without heads.

    Args:
        model: target and heads.
        rounds: timed calls.
    """
    import torch

    if model.heads is None:
        return 0.0
    context = context_length(model)
    output = token_text(model.vocab_size, min(rounds + 1, context))
    read = read_output(model, token_text(model.target.source_vocab_size, context), output)
    steps, times = read_states(model, read, output), []
    with torch.inference_mode():
        for _ in output:
            start = now(model)
            next(steps)
            times.append(1e3 * (now(model) - start))
    return float(np.median(times[1:] or times))  # the first one reads source or prompt


def _to_host(lattice: LatticeInput) -> LatticeInput:
    """The lattice with arrays of numpy."""
    arrays: dict[str, Any] = {
        name: None if array is None else array.detach().float().cpu().numpy()
        for name in ("scores", "start", "transitions")
        for array in [getattr(lattice, name)]
    }
    token_ids = lattice.token_ids.detach().cpu().numpy().astype(np.int32)
    return replace(lattice, token_ids=token_ids, **arrays)


def _join_transitions(lattices: Sequence[LatticeInput]) -> Transitions:
    """Those of all positions, of heads that give candidates."""
    first = lattices[0]
    if first.transitions is None:
        return Transitions(None, None, first.unary, first.normalization)
    start, scores = (
        np.ascontiguousarray(np.concatenate([getattr(lattice, name) for lattice in lattices]))
        for name in ("start", "transitions")
    )
    return Transitions(start, scores, first.unary, first.normalization)


def _entropies(logits: torch.Tensor) -> Float32Array:
    """Entropy of each distribution (.., V), in nats; masked tokens have probability 0."""
    import torch

    entropies = torch.special.entr(logits.float().softmax(dim=-1)).sum(dim=-1)
    return np.asarray(entropies.cpu().numpy(), np.float32)


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
        target: an encoder-decoder of `transformers` or its target; outputs end after its stop
            tokens.
        heads: such as a SpecDrafter; see `lattice_bpd.decode.generate`.
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
    if model.target.decoder_prompt is None:
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
            record_text(
                model, source, result.token_ids, top_k=top_k, max_new_tokens=max_new_tokens,
                finish=result.finish, name=str(number),
            )
        )  # fmt: skip
        if on_text is not None:
            on_text()
    return texts
