"""The strategies by name, and one call that decodes with any of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from transformers import GenerationConfig

from lattice_bpd.decode.adaptive.experience import experience_of
from lattice_bpd.decode.constraint.protocol import Constraint
from lattice_bpd.decode.drafters.basic import (
    Drafter,
    OracleDrafter,
)
from lattice_bpd.decode.huggingface.arguments import (
    MAX_NEW_TOKENS,
    check_max_new_tokens,
    check_stop_tokens,
    check_weights,
    ending,
    is_default,
)
from lattice_bpd.decode.huggingface.request import Request
from lattice_bpd.decode.huggingface.text_inputs import (
    TextInput,
    check_token_types,
    decode_text,
    read_single_text,
    read_texts,
)
from lattice_bpd.decode.loop.batch import decode_prompts
from lattice_bpd.decode.loop.loop import DecodeResult, decode
from lattice_bpd.decode.state.model import AnyHeads, DraftingModel
from lattice_bpd.decode.strategies.registry import STRATEGIES, make_drafter
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.acceptance.rule import Acceptance


def generate(
    model: Any,
    input_ids: Any = None,
    strategy: str = "tree",
    *,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    tokenizer: Any = None,
    generation_config: GenerationConfig | None = None,
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
    max_new_tokens: int = MAX_NEW_TOKENS,
    stop_token_ids: Collection[int] | int | None = None,
    form: str = "auto",
    streamer: Any = None,
    static_cache: bool = False,
    acceptance: Acceptance | None = None,
    certificate: bool | str = False,
    constraint: Constraint | None = None,
) -> DecodeResult:
    """Decode a text; every strategy returns the target's greedy output, unless a rule relaxes it.

        lm = NGramLM.load("corpus.lm")
        result = generate(BlockwiseLM.from_pretrained(directory), input_ids, lm=lm)
        result = generate(model, input_ids, heads=any_callable, lm=lm)
        result = generate(model, **tokenizer(text, return_tensors="pt"), heads=heads, lm=lm)
        result = generate(model, text, tokenizer=tokenizer, heads=heads, lm=lm)

    The output is that of `model.generate(input_ids, do_sample=False)`: the model's generation
    config is honored, with its end tokens, penalties, suppressed and forced tokens. What cannot be
    honored, such as beam search, is refused by name.

    Args:
        model: a causal LM or an encoder-decoder of `transformers`, a Seq2SeqTarget, or a
            BlockwiseLM, which brings its heads.
        input_ids: (T,) or (1, T) ints, or text with a tokenizer; of an encoder-decoder the source.
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
        attention_mask: of the same shape, 0 where a token is hidden; None: `model.generate` infers
            it, so that pad tokens are hidden where the generation config names them.
        token_type_ids: accepted where they are zeros and the model has token types.
        tokenizer: of `transformers` or `tokenizers`; turns text into token ids, and the output into
            `result.text`. Stop strings need one of `transformers`.
        generation_config: settings that replace the model's own; those that are None are the
            model's. With do_sample=True the text is sampled, with seeds from torch's generator.
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
        max_new_tokens: most tokens to decode. Where it is not given, the max_new_tokens or
            max_length of the generation config counts, else 64.
        stop_token_ids: decoding ends after the first of these, which is kept; an empty list: no
            token ends it; None: the eos_token_id of the generation config.
        form: how drafts are verified: "auto", "tree" or "rows"; see docs/decoding.md.
        streamer: of `transformers`, for one text; gets the prompt, then each token, then the end,
            by an error too.
        static_cache: a cache of fixed size, for one text and a compiled target.
        acceptance: which draft tokens are kept, judged by processed logits, see
            `lattice_bpd.verify.Acceptance`; None: Exact, even where the model's own generation
            config has do_sample=True. The result names a lossy rule as such, and its statistics
            what it cost.
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
    with ending(streamer):
        texts = read_single_text(input_ids, attention_mask, tokenizer)
        return _generate(
            model, texts, strategy, token_type_ids=token_type_ids, tokenizer=tokenizer,
            generation_config=generation_config, heads=heads, drafter=drafter,
            max_new_tokens=max_new_tokens, stop_token_ids=stop_token_ids, acceptance=acceptance,
            drafting={
                "lm": lm, "scorer": scorer, "top_k": top_k, "num_drafts": num_drafts,
                "max_nodes": max_nodes, "alpha": alpha, "temperature": temperature, "cache": cache,
                "draft_model": draft_model, "num_slots": num_slots,
            },
            options={
                "form": form, "streamer": streamer, "static_cache": static_cache,
                "certificate": certificate, "constraint": constraint,
            },
        )[0]  # fmt: skip


def generate_batch(
    model: Any,
    prompts: Sequence[Any] | None = None,
    strategy: str = "tree",
    *,
    input_ids: Any = None,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    tokenizer: Any = None,
    generation_config: GenerationConfig | None = None,
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
    max_new_tokens: int = MAX_NEW_TOKENS,
    stop_token_ids: Collection[int] | int | None = None,
    form: str = "auto",
    streamer: Any = None,
    static_cache: bool = False,
    acceptance: Acceptance | None = None,
    certificate: bool | str = False,
    constraint: Constraint | None = None,
) -> list[DecodeResult]:
    """Decode several texts together; each comes out as if it had been decoded alone.

    Args:
        model: see `generate`, as for all arguments that are not listed here.
        prompts: B sequences of ints, of any lengths, or (B, T) ints, or B texts with a tokenizer.
        strategy: see there.
        input_ids: the same as prompts, for `generate_batch(model, **tokenizer(texts, ...))`.
        attention_mask: 0 where a token is hidden: padding on the left or on the right.
        token_type_ids: see there.
        tokenizer: see there.
        generation_config: see there.
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
    with ending(streamer):
        if (prompts is None) is (input_ids is None):
            raise TypeError(
                "generate_batch: expected prompts or input_ids, one of them; give the prompts as "
                "generate_batch(model, prompts) or generate_batch(model, **inputs)"
            )
        given = input_ids if prompts is None else prompts
        return _generate(
            model, read_texts(given, attention_mask, tokenizer), strategy,
            token_type_ids=token_type_ids, tokenizer=tokenizer,
            generation_config=generation_config, heads=heads, drafter=drafter,
            max_new_tokens=max_new_tokens, stop_token_ids=stop_token_ids, acceptance=acceptance,
            drafting={
                "lm": lm, "scorer": scorer, "top_k": top_k, "num_drafts": num_drafts,
                "max_nodes": max_nodes, "alpha": alpha, "temperature": temperature, "cache": cache,
                "draft_model": draft_model, "num_slots": num_slots,
            },
            options={
                "form": form, "streamer": streamer, "static_cache": static_cache,
                "certificate": certificate, "constraint": constraint,
            },
        )  # fmt: skip


def _generate(
    model: Any,
    texts: list[TextInput],
    strategy: str,
    *,
    token_type_ids: Any,
    tokenizer: Any,
    generation_config: GenerationConfig | None,
    heads: AnyHeads | None,
    drafter: Drafter | Sequence[Drafter] | None,
    max_new_tokens: int,
    stop_token_ids: Collection[int] | int | None,
    acceptance: Acceptance | None,
    drafting: dict[str, Any],
    options: dict[str, Any],
) -> list[DecodeResult]:
    """What `generate` and `generate_batch` share."""
    check_weights(model)
    target = DraftingModel(model, heads)
    if not is_default(max_new_tokens):
        check_max_new_tokens(max_new_tokens)
    if stop_token_ids is not None:
        stop_token_ids = check_stop_tokens(stop_token_ids, target.vocab_size)
    request = Request(
        target, texts, generation_config, max_new_tokens, stop_token_ids, acceptance, tokenizer
    )
    check_token_types(token_type_ids, target.target.base)
    if drafter is None:
        drafter = make_drafter(
            strategy, target.vocab_size, **drafting, has_heads=target.heads is not None,
            experience=experience_of(model) if strategy == "auto" else None,
        )  # fmt: skip
        if strategy == "oracle":
            prompts, settings = request.prepare({**options, "streamer": None, "certificate": False})
            outputs = decode_prompts(target, prompts, drafter, settings)
            drafter = [
                OracleDrafter(result.token_ids, top_k=drafting["top_k"]) for result in outputs
            ]
    prompts, settings = request.prepare(options)
    results = decode_prompts(target, prompts, drafter, settings)
    for result in results:
        result.text = decode_text(tokenizer, result.token_ids)
    return results


__all__ = ["STRATEGIES", "decode", "generate", "generate_batch", "make_drafter"]
