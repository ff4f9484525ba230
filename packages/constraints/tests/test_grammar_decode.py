"""Decoding under constraints returns the constrained greedy output in fewer calls."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import POSITIONS, VOCAB, model_of, output_of, random_model
from constraints import (
    END,
    REGEXES,
    TOKENS,
    acceptor_of,
    constrained_greedy,
    random_acceptor,
    text_of,
)
from lattice_bpd import DraftConfig, NGramLM, verify
from lattice_bpd.decode import Drafter, PBestDrafter, TreeDrafter, decode
from lattice_bpd.decode.drafters import MixtureDrafter
from lattice_bpd.verify import PrefixTree
from lattice_bpd_constraints import GuidanceConstraint
from lattice_bpd_kim2024.blockwise import BlockwiseLM

PROMPT = [1, 2, 3]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {}, "bpd": {}, "ngram": {"lm": True}, "p_best": {"lm": True}, "tree": {"lm": True},
    "tree alone": {}, "p_best alone": {},
    "mixture": {}, "neural": {"lm": True},
    "tree at 2": {"temperature": 2.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def lm() -> NGramLM:
    text = np.random.default_rng(0).integers(0, VOCAB, 4000).astype(np.int32)
    return NGramLM.train([text], 2, vocab_size=VOCAB, smoothing="witten_bell")


def guidance(regex: str) -> GuidanceConstraint:
    pytest.importorskip("llguidance")
    return GuidanceConstraint.from_regex(regex, TOKENS, end_token_ids=[END])


def small(strategy: str = "tree", **options: Any) -> DraftConfig:
    """Few candidates and drafts."""
    return DraftConfig(strategy, top_k=5, num_drafts=5, max_nodes=14, **options)


def options_of(way: str, lm: NGramLM) -> dict[str, Any]:
    options = dict(WAYS[way])
    used = lm if options.pop("lm", False) else None
    return {"drafter": small(way.split()[0], **options), "lm": used}


@pytest.mark.parametrize("regex", REGEXES)
@pytest.mark.parametrize("kind", ["llama", "trained"])
def test_grammar_of_a_regex_with_every_strategy(kind: str, regex: str, lm: NGramLM) -> None:
    model, constraint = model_of(kind), guidance(regex)
    wanted = constrained_greedy(model, PROMPT, constraint, 28)
    for way in WAYS:
        result = output_of(
            model, PROMPT, constraint=constraint, max_new_tokens=28, **options_of(way, lm)
        )
        assert result.token_ids == wanted, way
    if wanted[-1] == END:
        assert re.fullmatch(regex, text_of(wanted))
        assert result.finish == "stop_token"


@pytest.mark.parametrize("number", range(4))
def test_grammar_of_an_acceptor_with_every_strategy(number: int, seed: int, lm: NGramLM) -> None:
    arcs, final = random_acceptor(np.random.default_rng([seed, number]))
    constraint = acceptor_of(arcs, final, end_token_ids=[40])
    for kind in ("llama", "trained"):
        wanted = constrained_greedy(model_of(kind), PROMPT, constraint, 20)
        for way in WAYS:
            result = output_of(
                model_of(kind), PROMPT, constraint=constraint, max_new_tokens=20,
                **options_of(way, lm),
            )  # fmt: skip
            assert result.token_ids == wanted, (kind, way)


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_grammar_of_a_batch_is_as_alone(layout: str, lm: NGramLM) -> None:
    model, constraint = model_of("llama"), guidance('[a-f]{2,9}(, "[a-z]{1,3}")*')
    prompts = [[1, 2, 3], [7], [9, 8, 7, 6, 5, 4], [30, 1]]
    for way in ("bpd", "p_best", "tree"):
        options = {"constraint": constraint, "max_new_tokens": 24, "layout": layout}
        together = output_of(model, prompts, **options, **options_of(way, lm))
        for prompt, result in zip(prompts, together, strict=True):
            assert result.token_ids == constrained_greedy(model, prompt, constraint, 24)


def test_grammar_ends_only_where_it_accepts() -> None:
    model = model_of("llama")
    stop = TOKENS.index(b"z")
    constraint = guidance("[a-y]{6}[a-z]*")
    results = output_of(
        model, PROMPT, "bpd", constraint=constraint, stop_token_ids=[stop], max_new_tokens=40
    )
    assert results.token_ids == constrained_greedy(model, PROMPT, constraint, 40, (stop,))
    assert len(results.token_ids) > 1
    assert all(token not in (stop, END) for token in results.token_ids[:-1])


def test_grammar_without_end_tokens_ends_when_nothing_may_follow() -> None:
    constraint = acceptor_of([(0, 5, 1), (0, 6, 1), (1, 7, 2), (1, 8, 2)], {2})
    for strategy in ("greedy", "tree"):
        result = output_of(model_of("llama"), PROMPT, small(strategy), constraint=constraint)
        assert (len(result.token_ids), result.finish) == (2, "constraint")
    empty = acceptor_of([(0, 0, 1)], {1})
    result = output_of(model_of("llama"), PROMPT, small(), constraint=empty)
    assert (result.token_ids, result.finish) == ([], "constraint")
    circle = acceptor_of([(0, 5, 0)], {0})
    result = output_of(model_of("llama"), PROMPT, small(), constraint=circle, max_new_tokens=9)
    assert (result.token_ids, result.finish) == ([4] * 9, "length")


def test_grammar_drafts_what_must_come_beyond_the_heads() -> None:
    chain = [(state, state + 5, state + 1) for state in range(20)]
    constraint = acceptor_of(chain, {20}, end_token_ids=[40])
    model = random_model("llama")
    result = output_of(model, PROMPT, "bpd", constraint=constraint, max_new_tokens=30)
    assert result.token_ids == [*range(4, 24), 40]
    assert result.stats.target_calls == 2  # the prompt, and all that must come
    assert result.stats.verified_tokens == 20
    greedy = output_of(model, PROMPT, "greedy", constraint=constraint, max_new_tokens=30)
    assert greedy.token_ids == result.token_ids
    assert greedy.stats.target_calls == 21
    most = POSITIONS - len(PROMPT) + 1
    long = acceptor_of([(0, 5, 0)], {0})
    result = output_of(model, PROMPT, "bpd", constraint=long, max_new_tokens=200)
    assert (len(result.token_ids), result.finish) == (most, "positions")


class Stubborn(Drafter):
    """Proposes tokens that are never allowed after one that may be."""

    def propose(self, states: Any) -> list[PrefixTree]:
        wrong = [47] * 9  # cut to the longest draft
        return [PrefixTree.from_drafts(s.tokens[-1], [wrong, [1, *wrong]]) for s in states]


def test_grammar_cuts_the_drafts_of_any_drafter() -> None:
    model, constraint = model_of("llama"), guidance("[a-c]{30}")
    result = decode(model.base, PROMPT, Stubborn(), constraint=constraint, max_new_tokens=8)
    assert result.token_ids == constrained_greedy(model, PROMPT, constraint, 8)
    steps = result.stats.target_calls - 1
    assert steps - 1 <= result.stats.verified_tokens <= steps  # the 1 alone, where one more fits


@pytest.mark.parametrize(
    ("name", "least"), [("TreeDrafter", 10), ("PBestDrafter", 6), ("MixtureDrafter", 12)]
)
def test_grammar_drafts_are_allowed_on_their_path(name: str, least: int, lm: NGramLM) -> None:
    """Before the loop cuts them, and hardly fewer than without a constraint."""
    kinds: dict[str, Any] = {
        "TreeDrafter": lambda: TreeDrafter(lm, top_k=5, max_nodes=12),
        "PBestDrafter": lambda: PBestDrafter(lm, top_k=5, num_drafts=4),
        "MixtureDrafter": lambda: MixtureDrafter([lm], heads=True, max_nodes=12, top_k=5),
    }
    drafter, sizes = kinds[name](), []
    # after a token comes one of the next six, and so on in a circle
    arcs = [
        (1 + token, 1 + (token + step) % VOCAB, 1 + (token + step) % VOCAB)
        for token in range(VOCAB)
        for step in range(1, 7)
    ]
    constraint = acceptor_of([*arcs, (0, 1, 1)], set(range(1, VOCAB + 1)))

    class Watched(Drafter):
        def propose(self, states: Any) -> Any:
            trees = drafter.propose(states)
            for state, tree in zip(states, trees, strict=True):
                nodes = {0: state.constrained.automaton_state}
                edges = zip(tree.parents[1:], tree.token_ids[1:], strict=True)
                for node, (parent, token) in enumerate(edges, start=1):
                    nodes[node] = nodes[parent].advance(token)
                    assert nodes[node] is not None
                if state.num_slots >= 4:
                    sizes.append(len(tree) - 1)
            return trees

    model = model_of("llama")
    result = decode(
        model.base, PROMPT, Watched(), heads=model.heads, constraint=constraint, max_new_tokens=24
    )
    assert result.token_ids == constrained_greedy(model, PROMPT, constraint, 24)
    assert np.mean(sizes) >= least


def test_grammar_of_another_vocabulary_is_refused() -> None:
    small = acceptor_of([(0, 1, 1)], {1}, vocab_size=20)
    with pytest.raises(ValueError, match=r"a vocabulary of 20, the target one of 48"):
        output_of(model_of("llama"), PROMPT, constraint=small)
    with pytest.raises(TypeError, match="constraint is a str; expected a Constraint"):
        output_of(model_of("llama"), PROMPT, constraint="a*")  # type: ignore[arg-type]


def tiny_model(vocab_size: int) -> BlockwiseLM:
    """A Llama with random weights over a tokenizer's vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return BlockwiseLM(LlamaForCausalLM(config), num_heads=4).eval()


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "kind", "count"],
    "additionalProperties": False,
}


def test_grammar_of_a_json_schema_over_sentencepiece(shared_data: Path) -> None:
    pytest.importorskip("llguidance")
    sentencepiece = pytest.importorskip("sentencepiece")
    path = shared_data / "stories260K" / "tok512.model"
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(path))
    constraint = GuidanceConstraint.from_json_schema(
        SCHEMA, tokenizer, end_token_ids=[tokenizer.eos_id()], whitespace=False
    )
    model = tiny_model(512)
    wanted = constrained_greedy(model, [5, 6], constraint, 60)
    assert wanted[-1] == tokenizer.eos_id()
    assert set(json.loads(tokenizer.decode(wanted[:-1]))) == {"name", "kind", "count"}
    for strategy in ("bpd", "p_best", "tree"):
        result = output_of(model, [5, 6], small(strategy), constraint=constraint, max_new_tokens=60)
        assert result.token_ids == wanted
        assert result.stats.target_calls < len(wanted)


def test_grammar_under_sampling_by_seed() -> None:
    model, constraint = model_of("llama"), guidance("abc[0-9]+xyz")
    texts = set()
    for seed in range(4):
        options = {"acceptance": getattr(verify, "Sampled")(1.5, seed=seed), "max_new_tokens": 30}  # noqa: B009
        plain = output_of(model, PROMPT, "greedy", constraint=constraint, **options)
        for strategy in ("bpd", "p_best", "tree", "mixture"):
            result = output_of(model, PROMPT, small(strategy), constraint=constraint, **options)
            assert result.token_ids == plain.token_ids
        texts.add(text_of(plain.token_ids))
        assert re.fullmatch("abc[0-9]+(xyz)?", text_of(plain.token_ids))
    assert len(texts) > 1
