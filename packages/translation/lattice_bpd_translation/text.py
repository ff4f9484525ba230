"""Source-output pairs of encoder-decoders, their batches, and self-generated outputs.

Drafters are trained on greedy outputs of the target, which are what verification accepts
(sequence-level knowledge distillation: Kim and Rush 2016; Xia et al. 2022, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig

from lattice_bpd_translation.target import Seq2SeqTarget

IGNORED = -100  # label of padding
_POOL = 32  # batches per group that is sorted by length


@dataclass(frozen=True)
class Pair:
    """A source and its output.

    Attributes:
        source: token ids, one or more.
        output: token ids after the decoder's prompt, including the stop token.
    """

    source: Sequence[int]
    output: Sequence[int]


@dataclass(frozen=True)
class PairBatch:
    """B pairs, padded on the right.

    Attributes:
        source: (B, S) int64.
        source_mask: (B, S) int64, 0 for padding.
        tokens: (B, P + T - 1) int64, decoder prompt of P tokens, and the output but its last.
        labels: (B, P + T - 1) int64, the next token of each; IGNORED for padding and the prompt.
    """

    source: Tensor
    source_mask: Tensor
    tokens: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """B."""
        return len(self.source)


def collate(pairs: Sequence[Pair], prompt: Sequence[int]) -> PairBatch:
    """Makes a batch of pairs.

    Args:
        pairs: one or more.
        prompt: the decoder prompt, start token first.

    Raises:
        ValueError: an empty source or output.
    """
    for pair in pairs:
        if len(pair.source) == 0 or len(pair.output) == 0:
            raise ValueError(
                f"collate: a pair has {len(pair.source)} source and {len(pair.output)} output "
                "tokens; expected one or more of each; leave empty lines out"
            )
    source = _pad([list(pair.source) for pair in pairs], 0)
    sizes = torch.tensor([len(pair.source) for pair in pairs], device="cpu")
    mask = (torch.arange(source.shape[1], device="cpu") < sizes[:, None]).long()
    tokens = _pad([[*prompt, *pair.output[:-1]] for pair in pairs], 0)
    given = [IGNORED] * (len(prompt) - 1)
    labels = _pad([[*given, *pair.output] for pair in pairs], IGNORED)
    return PairBatch(source, mask, tokens, labels)


def shuffled_batches(
    pairs: Sequence[Pair], prompt: Sequence[int], batch_size: int, seed: int
) -> Iterator[PairBatch]:
    """An infinite iterator over shuffled batches of pairs of similar length.

    Args:
        pairs: one or more.
        prompt: see `collate`.
        batch_size: pairs per batch, 1 or more.
        seed: seed of the order.

    Raises:
        ValueError: no pair, or an empty batch.
    """
    if len(pairs) == 0 or batch_size < 1:
        raise ValueError(
            f"shuffled_batches: {len(pairs)} pairs in batches of {batch_size}; expected one or more"
        )
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(pairs), generator=generator, device="cpu").tolist()
        pools = [
            order[i : i + _POOL * batch_size] for i in range(0, len(order), _POOL * batch_size)
        ]
        for pool in pools:
            pool.sort(key=lambda number: (len(pairs[number].output), len(pairs[number].source)))
            groups = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
            for index in torch.randperm(len(groups), generator=generator, device="cpu").tolist():
                yield collate([pairs[number] for number in groups[index]], prompt)


@torch.inference_mode()
def generate_outputs(
    target: Seq2SeqTarget,
    sources: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    num_beams: int = 1,
    batch_size: int = 256,
    on_batch: Callable[[], None] | None = None,
) -> list[list[int]]:
    """The target's outputs for many sources: greedy, as `generate` gives, or of a beam search.

    Args:
        target: the target, with its stop tokens.
        sources: token ids, one or more of each.
        max_new_tokens: longest output.
        num_beams: beams of a beam search; 1: none. Outputs of a beam search are the distilled text
            of Stern et al. 2018, section 6.2 (there with 4 beams).
        batch_size: sources per batch.
        on_batch: called after each batch.

    Returns:
        The output of each source, including its stop token, in order.

    Raises:
        ValueError: an empty source, or max_new_tokens, num_beams or batch_size below 1.
    """
    if min(max_new_tokens, num_beams, batch_size, *map(len, sources), 1) < 1:
        raise ValueError(
            f"generate_outputs: max_new_tokens {max_new_tokens}, num_beams {num_beams}, batch_size "
            f"{batch_size}, {sum(len(source) == 0 for source in sources)} empty sources; expected "
            "1 or more, and no source without a token"
        )
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    outputs: list[list[int]] = [[] for _ in sources]
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        batch = [sources[number] for number in numbers]
        if num_beams > 1:
            generated = _search(target, batch, max_new_tokens, num_beams)
        else:
            generated = _generate(target, batch, max_new_tokens)
        for number, output in zip(numbers, generated, strict=True):
            outputs[number] = output
        if on_batch is not None:
            on_batch()
    return outputs


def _generate(
    target: Seq2SeqTarget, sources: Sequence[Sequence[int]], count: int
) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in sources]
    active = list(range(len(sources)))
    prompt = torch.tensor([target.decoder_prompt] * len(sources), device=target.device)
    last, cache = target.read_prompts(prompt, source=target.encode(sources))
    for step in range(count):
        tokens = last.logits[:, -1].argmax(dim=-1)
        chosen = tokens.tolist()
        for number, token in zip(active, chosen, strict=True):
            outputs[number].append(token)
        kept = [row for row, token in enumerate(chosen) if token not in target.stop_token_ids]
        if not kept or step == count - 1:
            break
        if len(kept) < len(active):
            cache.keep_sequences(kept)
            tokens, active = tokens[kept], [active[row] for row in kept]
        last = target(tokens[:, None], cache)
        cache.keep_nodes([[0]] * len(active))
    return outputs


def _search(
    target: Seq2SeqTarget, sources: Sequence[Sequence[int]], count: int, num_beams: int
) -> list[list[int]]:
    """The best outputs that a beam search finds, each cut after its stop token."""
    ids = _pad([list(source) for source in sources], 0).to(target.device)
    sizes = torch.tensor([len(source) for source in sources], device=target.device)
    prompt = torch.tensor([target.decoder_prompt] * len(sources), device=target.device)
    stops = sorted(target.stop_token_ids)
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        num_beams=num_beams, do_sample=False, max_new_tokens=count, use_cache=True,
        bos_token_id=None, eos_token_id=stops or None, pad_token_id=stops[0] if stops else 0,
        decoder_start_token_id=target.decoder_prompt[0],
    )  # fmt: skip
    generated = target.base.generate(
        input_ids=ids,
        attention_mask=(torch.arange(ids.shape[1], device=ids.device) < sizes[:, None]).long(),
        decoder_input_ids=prompt,
        generation_config=config,
    )
    outputs = []
    for row in generated[:, prompt.shape[1] :].tolist():
        end = next((at for at, token in enumerate(row) if token in stops), len(row) - 1)
        outputs.append(row[: end + 1])
    return outputs


def _pad(rows: list[list[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows], device="cpu")
