"""One recorded text: a greedy output, and the heads' candidates at every position.

The target reads the complete output in one call, which gives the heads at all positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.drafters.head_candidates import batch_head_logits
from lattice_bpd.decode.drafters.suffix_index import SuffixIndex
from lattice_bpd.decode.state.heads import HiddenStateHeads
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd.verify.target import TargetOutput

if TYPE_CHECKING:
    import torch

    from lattice_bpd.decode.state.model import DraftingModel

Float32Array = npt.NDArray[np.float32]
_CHUNK_ELEMENTS = 1 << 24  # head logits computed at once: 64 MiB of float32


@dataclass(frozen=True)
class RecordedText:
    """A prompt, greedy's output of m tokens, and the heads at its m positions.

    Position i is that of output[i], the exact token of a call; its candidates start from the
    hidden state that gave this token and predict output[i + 1], output[i + 2], ...

    Attributes:
        prompt: (T,) int32.
        output: (m,) int32.
        limit: maximum length of the output; m, unless a stop token ended it.
        token_ids: (m, H, k) int32, the k best tokens of each head, best first.
        scores: (m, H, k) float32, their raw logits.
        entropies: (m, H + 1) float32, of each head over the whole vocabulary, in nats; the target's
            own head comes first.
        margins: (m,) float32, the target's logit of output[i] minus the best other one. Below 0
            where the calls that decode and record round a tie differently.
        finish: why the text ended: "stop_token", "length" or "positions".
        task: name of its task, with "/category" if it has one; may be empty.
        name: its id within the task, such as "HumanEval/3"; may be empty.
        references: texts that the output is judged by.
    """

    prompt: Int32Array
    output: Int32Array
    limit: int
    token_ids: Int32Array
    scores: Float32Array
    entropies: Float32Array
    margins: Float32Array
    finish: str = "length"
    task: str = ""
    name: str = ""
    references: tuple[str, ...] = field(default=())

    @property
    def num_slots(self) -> int:
        """H."""
        return int(self.token_ids.shape[1])

    def cut(self, top_k: int) -> RecordedText:
        """The same with the top_k best candidates of each head."""
        if top_k == self.token_ids.shape[2]:
            return self
        return replace(self, token_ids=self.token_ids[..., :top_k], scores=self.scores[..., :top_k])

    def contexts(self, most: int) -> Iterator[Int32Array]:
        """At most `most` tokens up to and including each position's exact token, int32."""
        tokens = np.concatenate([self.prompt[-most:], self.output]).astype(np.int32, copy=False)
        for end in range(len(tokens) - len(self.output) + 1, len(tokens) + 1):
            yield tokens[max(0, end - most) : end]

    def wanted(self) -> Int32Array:
        """(m, H) int32, the output after each position; -1 after its end."""
        padded = np.concatenate([self.output[1:], np.full(self.num_slots, -1)]).astype(np.int32)
        return np.lib.stride_tricks.sliding_window_view(padded, self.num_slots)[: len(self.output)]

    @cached_property
    def lookups(self) -> Int32Array:
        """(m, H) int32, the drafts of prompt lookup at each position; -1 after their end."""
        index, drafts = SuffixIndex(), np.full((len(self.output), self.num_slots), -1, np.int32)
        index.extend(self.prompt.tolist())
        for position, token in enumerate(self.output.tolist()):
            index.extend([token])
            draft = index.look_up(self.num_slots)
            drafts[position, : len(draft)] = draft
        return drafts

    def usable_slots(self) -> Int64Array:
        """(m,) int64: number of slots, 0..H, whose tokens fit before the limit."""
        left = self.limit - 2 - np.arange(len(self.output))
        return np.clip(left, 0, self.num_slots).astype(np.int64)


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
        prompt: (T,) ints.
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
    if model.max_positions is not None:
        limit = min(limit, model.max_positions - len(prompt) + 1)
    with torch.inference_mode():
        read = _read(model, prompt, output)
        margins, own = _margins(read.logits, output), _entropies(read.logits)[:, None]
        parts = []
        for logits in _head_logits(model, read, prompt, list(output)):
            top = select_top_k(logits, top_k, log_softmax=False, where="record")
            parts.append((top.token_ids, top.scores, _entropies(logits)))
    token_ids, scores, others = (np.concatenate(part) for part in zip(*parts, strict=True))
    entropies = np.concatenate([own, others], axis=1)
    return RecordedText(
        np.array(prompt, np.int32), np.array(output, np.int32), limit,
        token_ids, scores, entropies, margins, **about,
    )  # fmt: skip


def _read(model: DraftingModel, prompt: Sequence[int], output: Sequence[int]) -> TargetOutput:
    """Logits (m, V) and hidden states (m, D) that gave the output, and features (T + m - 1, F)."""
    import torch

    text = torch.tensor([list(prompt)], device=model.device)
    first, cache = model.target.read_prompts(text)
    calls = [TargetOutput(first.logits[0], first.hidden[0], _first_row(first.features))]
    if len(output) > 1:
        ids = torch.tensor([list(output[:-1])], device=model.device)
        rest = model.target(ids, cache)
        calls.append(TargetOutput(rest.logits[0], rest.hidden[0], _first_row(rest.features)))
    features = [call.features for call in calls if call.features is not None]
    return TargetOutput(
        torch.cat([call.logits for call in calls]),
        torch.cat([call.hidden for call in calls]),
        torch.cat(features) if features else None,
    )


def _first_row(features: torch.Tensor | None) -> torch.Tensor | None:
    return None if features is None else features[0]


def _margins(logits: torch.Tensor, output: Sequence[int]) -> Float32Array:
    """(m,) the logit of each token of the output minus the best other one's."""
    import torch

    tokens = torch.tensor(list(output), device=logits.device)
    own = logits.gather(1, tokens[:, None])[:, 0].float()
    best, ids = logits.topk(2, dim=1)
    others = torch.where(ids[:, 0] == tokens, best[:, 1], best[:, 0]).float()
    return np.asarray((own - others).cpu().numpy(), np.float32)


def _head_logits(
    model: DraftingModel, read: TargetOutput, prompt: Sequence[int], output: Sequence[int]
) -> Iterator[torch.Tensor]:
    """Head logits of the m positions of the output, a chunk (n, H, V) at a time."""
    if not isinstance(model.heads, HiddenStateHeads):
        yield from _state_logits(model, read, prompt, output)
        return
    size = max(1, _CHUNK_ELEMENTS // ((model.num_slots or 8) * model.vocab_size))
    for start in range(0, len(output), size):
        yield model.head_logits(read.hidden[start : start + size], output[start : start + size])


def _state_logits(
    model: DraftingModel, read: TargetOutput, prompt: Sequence[int], output: Sequence[int]
) -> Iterator[torch.Tensor]:
    """The logits (1, H, V) of heads that read states, after each token of the output in turn."""
    limit, known = len(output), len(prompt)
    state = DecodeState(model, list(prompt), known, read.hidden[0], limit, DecodeStats())
    for index, token in enumerate(output):
        state.tokens.append(token)
        state.hidden = read.hidden[index]
        if read.features is not None:
            state.features.append(read.features[0 if index == 0 else known - 1 : known])
        known += 1
        yield batch_head_logits([state], all_slots=True)


def _entropies(logits: torch.Tensor) -> Float32Array:
    """Entropy of each distribution (.., V), in nats; masked tokens have probability 0."""
    import torch

    entropies = torch.special.entr(logits.float().softmax(dim=-1)).sum(dim=-1)
    return np.asarray(entropies.cpu().numpy(), np.float32)
