"""Checks greedy outputs against the target's own `generate`, which shares no code with ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.live.compare import Difference, find_difference


@torch.inference_mode()
def check_greedy(
    model: BlockwiseLM,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] = (),
    on_prompt: Callable[[], None] | None = None,
) -> list[Difference]:
    """Decode each prompt by `model.base.generate(do_sample=False)` and compare.

    Args:
        model: target; its heads are not used.
        prompts: token ids, each decoded in a batch of one.
        outputs: what `compare_strategies` decoded greedily after each prompt.
        max_new_tokens: as given there.
        stop_token_ids: as given there.
        on_prompt: called after each prompt.

    Returns:
        The prompts whose outputs differ; empty if all are equal, token for token.
    """
    ends = list(stop_token_ids)
    differing = []
    for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        ids = torch.tensor([list(prompt)], device=model.device)
        generated = model.base.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
        )
        expected = generated[0, len(prompt) :].tolist()
        if expected != list(output):
            differing.append(find_difference(model, number, prompt, expected, output))
        if on_prompt is not None:
            on_prompt()
    return differing
