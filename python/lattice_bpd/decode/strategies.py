"""The strategies by name, and one call that decodes with any of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from lattice_bpd import NGramLM
from lattice_bpd.decode.drafters import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
    OracleDrafter,
)
from lattice_bpd.decode.loop import DecodeResult, decode
from lattice_bpd.models import BlockwiseLM

STRATEGIES = ("greedy", "bpd", "ngram", "p_best", "oracle")


def generate(
    model: BlockwiseLM,
    prompt: Sequence[int] | Tensor,
    strategy: str = "p_best",
    *,
    lm: NGramLM | None = None,
    top_k: int = 16,
    num_drafts: int = 16,
    alpha: float = 0.5,
    max_new_tokens: int = 64,
    stop_token_ids: Collection[int] = (),
) -> DecodeResult:
    """Decode a text; every strategy returns the target's greedy output.

    Args:
        model: target and heads.
        prompt: (T,) ints.
        strategy: "greedy"; "bpd", argmax drafts of the heads; "ngram", the best path with the LM;
            "p_best", the num_drafts best paths, with the LM or, where lm is None, without;
            "oracle", the best path that hindsight can find (decodes greedily first; the calls
            of that are not counted).
        lm: n-gram LM over the target's token ids; needed by "ngram".
        top_k: k, candidates of each slot.
        num_drafts: p, drafts of "p_best".
        alpha: weight of the LM.
        max_new_tokens: most tokens to decode.
        stop_token_ids: decoding ends behind the first of these.

    Returns:
        DecodeResult.

    Raises:
        ValueError: an unknown strategy, "ngram" without an LM, a top_k outside 1..V, num_drafts
            below 1, an LM of another vocabulary, or what `decode` refuses.
    """
    _check_options(model, strategy, lm, top_k, num_drafts)

    def run(drafter: Drafter) -> DecodeResult:
        return decode(
            model, prompt, drafter, max_new_tokens=max_new_tokens, stop_token_ids=stop_token_ids
        )

    if strategy == "greedy":
        return run(NoDrafter())
    if strategy == "bpd":
        return run(BlockDrafter())
    if strategy == "oracle":
        return run(OracleDrafter(run(NoDrafter()).token_ids, top_k=top_k))
    drafts = 1 if strategy == "ngram" else num_drafts
    return run(LatticeDrafter(lm, top_k=top_k, num_drafts=drafts, alpha=alpha))


def _check_options(
    model: BlockwiseLM, strategy: str, lm: NGramLM | None, top_k: int, num_drafts: int
) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(
            f"generate: strategy is {strategy!r}; expected one of {', '.join(STRATEGIES)}"
        )
    if strategy == "ngram" and lm is None:
        raise ValueError(
            "generate: strategy 'ngram' needs an n-gram LM; give lm=NGramLM.load(path), or use "
            "'p_best', which also works on the heads alone"
        )
    if not 1 <= top_k <= model.vocab_size:
        raise ValueError(f"generate: top_k is {top_k}; expected 1..{model.vocab_size}")
    if num_drafts < 1:
        raise ValueError(f"generate: num_drafts is {num_drafts}; expected 1 or more")
