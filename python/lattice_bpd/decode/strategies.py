"""The strategies by name, and one call that decodes with any of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lattice_bpd import NGramLM
from lattice_bpd.decode.batch import decode_batch
from lattice_bpd.decode.constraint import Constraint
from lattice_bpd.decode.drafters import (
    Drafter,
    OracleDrafter,
)
from lattice_bpd.decode.experience import experience_of
from lattice_bpd.decode.loop import DecodeResult, decode
from lattice_bpd.decode.make_drafter import STRATEGIES, make_drafter
from lattice_bpd.decode.model import AnyHeads, DraftingModel
from lattice_bpd.verify import Acceptance


def generate(
    model: Any,
    input_ids: Any,
    strategy: str = "tree",
    *,
    heads: AnyHeads | None = None,
    drafter: Drafter | Sequence[Drafter] | None = None,
    lm: NGramLM | None = None,
    scorer: Any = None,
    top_k: int = 16,
    num_drafts: int = 16,
    max_nodes: int = 36,
    alpha: float = 0.5,
    temperature: float = 1.0,
    cache: bool | int = False,
    draft_model: Any = None,
    num_slots: int | None = None,
    max_new_tokens: int = 64,
    stop_token_ids: Collection[int] = (),
    form: str = "auto",
    streamer: Any = None,
    static_cache: bool = False,
    acceptance: Acceptance | None = None,
    certificate: bool = False,
    constraint: Constraint | None = None,
) -> DecodeResult:
    """Decode a text; every strategy returns the target's greedy output, unless a rule relaxes it.

        blockwise = BlockwiseLM.from_pretrained(directory)
        found = generate(blockwise, input_ids, lm=NGramLM.load("corpus.lm"))
        found = generate(model, input_ids, heads=any_callable, lm=NGramLM.load("corpus.lm"))

    Args:
        model: a causal LM or an encoder-decoder of `transformers`, a Seq2SeqTarget, or a
            BlockwiseLM, which brings its heads.
        input_ids: (T,) or (1, T) ints; of an encoder-decoder the source.
        strategy: "greedy"; "bpd", argmax drafts of the heads; "ngram", the best path with the LM;
            "neural", the path that the scorer finds slot by slot; "p_best", the num_drafts best
            paths, and "tree", the max_nodes most probable prefixes, both with the LM or, where lm
            is None, without, and "p_best" with a scorer too, by beam search; "drawn", paths drawn
            from the lattice as one tree of max_nodes, for Rejection; "auto", trees of the
            size that pays, or greedy steps where none does, by times and acceptance measured on the
            way and remembered for the model; "draft_model", what a small causal LM would write, as
            a chain or, with the LM, as a tree of its rescored lattice; "lookup", what followed the
            last tokens before; "combined", one tree of heads, their continuation by the LM, draft
            model and lookup, of what there is; "oracle", the best path that hindsight can find
            (decodes greedily first; the calls of that are not counted).
        heads: callable, hidden states (B, D) -> logits (B, H, V) of the tokens behind the next;
            BlockwiseHeads, or StateHeads such as SpecDrafterHeads.
        drafter: your own instead of a strategy's.
        lm: n-gram LM over the target's token ids; needed by "ngram".
        scorer: a small causal LM of `transformers` with the target's tokenizer, or any
            TransitionScorer; needed by "neural".
        top_k: k, candidates of each slot.
        num_drafts: p, drafts of "p_best".
        max_nodes: N, draft tokens of "tree", "drawn", "combined" and the tree of "draft_model", and
            the most of "auto".
        alpha: weight of the LM or the scorer.
        temperature: divides the scores of trees; above 1 it grows wider and less deep.
        cache: whether "ngram", "p_best", "tree", "drawn" and "auto" mix n-grams of prompt and
            output so far into the LM; an int is the cache's order, 1..6, True is 4. The trees of
            "tree" and "auto" then also go on beyond the last slot as the text did; see TreeDrafter.
        draft_model: a small causal LM of `transformers` with the target's tokenizer, of
            "draft_model" and "combined".
        num_slots: longest draft of "draft_model" (None: 5) and "lookup" (None: 10).
        max_new_tokens: most tokens to decode.
        stop_token_ids: decoding ends behind the first of these; an encoder-decoder's own where
            there is none.
        form: how drafts are verified: "auto", "tree" or "rows"; see docs/decoding.md.
        streamer: of `transformers`, for one text; told prompt and tokens as they are decoded.
        static_cache: a cache of fixed size, for one text and a compiled target.
        acceptance: which draft tokens are kept, see `lattice_bpd.verify.Acceptance`; None: Exact.
            The result names a lossy rule as such, and its statistics what it cost.
        certificate: keep every token's margin, and decide those by plain calls again where rounding
            could have decided; see `Certificate`. For the exact rule only.
        constraint: what the new tokens must obey: a GuidanceConstraint, an FstConstraint or your
            own. Drafts obey it, and the output is greedy among the tokens that it allows.

    Returns:
        DecodeResult.

    Raises:
        ValueError: an unknown strategy, "ngram" without an LM, "neural" without a scorer, both lm
            and scorer, a draft model that is missing or not used, a top_k outside 1..V, num_drafts
            or max_nodes below 1, a temperature that is not above 0, an LM, a scorer, a draft model,
            heads or a constraint of another vocabulary, or what `decode` refuses.
        TypeError: no causal LM, heads that cannot be called, or a cache that is neither bool nor
            int.
        MemoryError: a call did not fit.
    """
    batch = input_ids if _has_two_axes(input_ids) else [input_ids]
    if len(batch) != 1:
        raise ValueError(
            f"generate: input_ids holds {len(batch)} sequences; expected one text, of shape "
            "(tokens,) or (1, tokens); use generate_batch for several"
        )
    return generate_batch(
        model, batch, strategy, heads=heads, drafter=drafter, lm=lm, scorer=scorer,
        top_k=top_k, num_drafts=num_drafts, max_nodes=max_nodes, alpha=alpha,
        temperature=temperature, cache=cache, draft_model=draft_model, num_slots=num_slots,
        max_new_tokens=max_new_tokens, stop_token_ids=stop_token_ids, form=form,
        streamer=streamer, static_cache=static_cache, acceptance=acceptance,
        certificate=certificate, constraint=constraint,
    )[0]  # fmt: skip


def generate_batch(
    model: Any,
    prompts: Sequence[Any],
    strategy: str = "tree",
    *,
    heads: AnyHeads | None = None,
    drafter: Drafter | Sequence[Drafter] | None = None,
    lm: NGramLM | None = None,
    scorer: Any = None,
    top_k: int = 16,
    num_drafts: int = 16,
    max_nodes: int = 36,
    alpha: float = 0.5,
    temperature: float = 1.0,
    cache: bool | int = False,
    draft_model: Any = None,
    num_slots: int | None = None,
    max_new_tokens: int = 64,
    stop_token_ids: Collection[int] = (),
    form: str = "auto",
    streamer: Any = None,
    static_cache: bool = False,
    acceptance: Acceptance | None = None,
    certificate: bool = False,
    constraint: Constraint | None = None,
) -> list[DecodeResult]:
    """Decode several texts together; each comes out as if it had been decoded alone.

    Args:
        model: see `generate`, as for all arguments that are not listed here.
        prompts: B sequences of ints, of any lengths and without padding.
        strategy: see there.
        heads: see there.
        drafter: your own, one for all prompts or a list with one for each.
        lm: see there.
        scorer: see there.
        top_k: see there.
        num_drafts: see there.
        max_nodes: see there.
        alpha: see there.
        temperature: see there.
        cache: see there; each text has its own.
        draft_model: see there.
        num_slots: see there.
        max_new_tokens: most tokens to decode behind each prompt.
        stop_token_ids: a text ends behind the first of these.
        form: see there.
        streamer: for a single prompt only.
        static_cache: for a single prompt only.
        acceptance: see there.
        certificate: see there; each text has its own.
        constraint: see there; the same for all prompts.

    Returns:
        A DecodeResult for each prompt, in order.

    Raises:
        ValueError: see there.
        TypeError: see there.
        MemoryError: see there.
    """
    drafting = DraftingModel(model, heads)
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "stop_token_ids": stop_token_ids, "form": form,
        "streamer": streamer, "static_cache": static_cache, "acceptance": acceptance,
        "certificate": certificate,
        "constraint": constraint,
    }  # fmt: skip
    if drafter is None:
        drafter = make_drafter(
            strategy, drafting.vocab_size, lm=lm, scorer=scorer, top_k=top_k,
            num_drafts=num_drafts, max_nodes=max_nodes, alpha=alpha, temperature=temperature,
            cache=cache, draft_model=draft_model, num_slots=num_slots,
            has_heads=drafting.heads is not None,
            experience=experience_of(model) if strategy == "auto" else None,
        )  # fmt: skip
        if strategy == "oracle":
            outputs = decode_batch(
                drafting, prompts, drafter, **{**options, "streamer": None, "certificate": False}
            )
            drafter = [OracleDrafter(found.token_ids, top_k=top_k) for found in outputs]
    return decode_batch(drafting, prompts, drafter, **options)


def _has_two_axes(input_ids: Any) -> bool:
    if hasattr(input_ids, "ndim"):
        return int(input_ids.ndim) == 2
    return len(input_ids) > 0 and hasattr(input_ids[0], "__len__")


__all__ = ["STRATEGIES", "decode", "generate", "generate_batch", "make_drafter"]
