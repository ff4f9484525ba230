"""Choosing alpha, the weight of the n-gram LM, on prompts that are not reported on.

Kim et al. 2024, appendix C.2: weights are tuned for block efficiency on held-out examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lattice_bpd.decode.drafters.p_best import PBestDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.blockwise import BlockwiseLM, to_drafting

DEFAULT_ALPHAS = (0.1, 0.15, 0.2, 0.3, 0.5)


def tune_alpha(
    model: BlockwiseLM,
    lm: NGramLM,
    prompts: Sequence[Sequence[int]],
    *,
    alphas: Sequence[float] = DEFAULT_ALPHAS,
    top_k: int = 16,
    num_drafts: int = 16,
    max_new_tokens: int = 64,
    stop_token_ids: Sequence[int] = (),
    on_prompt: Callable[[], None] | None = None,
) -> dict[float, float]:
    """Block efficiency of p-best n-gram decoding for each alpha.

    Args:
        model: target and heads.
        lm: n-gram LM.
        prompts: token ids of tuning prompts, on which no results are reported.
        alphas: weights to try.
        top_k: k.
        num_drafts: p.
        max_new_tokens: tokens to decode after each prompt.
        stop_token_ids: decoding ends after these.
        on_prompt: called after each prompt and alpha.

    Returns:
        Block efficiency by alpha, in the order of alphas; `max(result, key=result.get)` is the
        best, the first one among equals.

    Raises:
        ValueError: no prompts or no alphas, or what `decode` refuses.
    """
    if not prompts or not alphas:
        raise ValueError("tune_alpha: expected one prompt and one alpha or more")
    drafting = to_drafting(model)
    efficiencies: dict[float, float] = {}
    for alpha in alphas:
        stats = DecodeStats()
        drafter = PBestDrafter(lm, top_k=top_k, num_drafts=num_drafts, alpha=alpha)
        for prompt in prompts:
            result = decode(
                drafting,
                prompt,
                drafter,
                max_new_tokens=max_new_tokens,
                stop_token_ids=stop_token_ids,
            )
            stats.merge(result.stats)
            if on_prompt is not None:
                on_prompt()
        efficiencies[alpha] = stats.block_efficiency
    return efficiencies
