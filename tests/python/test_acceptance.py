"""Acceptance rules: worked examples, a plain re-implementation on small models, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from blockwise_models import VOCAB, model_of
from lattice_bpd.decode import Drafter, decode
from lattice_bpd.verify import PrefixTree, parse_acceptance

PROMPT = [3, 17, 5]


RULES = ["top_k:14", "specdec++:20,6.0", "typical:0.002,0.05"]


def admits(text: str, logits: torch.Tensor, best: int, token: int) -> bool:
    """The rules once more, in full."""
    rank, probs = int((logits > logits[token]).sum()), logits.softmax(0)
    entropy = float(-(probs * probs.log()).sum())
    return {
        "top_k:14": rank < 14,
        "specdec++:20,6.0": rank < 20 and float(logits[best] - logits[token]) <= 6.0,
        "typical:0.002,0.05": float(probs[token]) > min(0.002, 0.05 * math.exp(-entropy)),
    }[text]


def drafts_behind(tokens: list[int], slots: int) -> np.ndarray:
    """Four drafts that depend on the text so far, the first two with a common beginning."""
    rng = np.random.default_rng(sum(tokens) * 31 + len(tokens))
    rows = rng.integers(0, VOCAB, (4, slots))
    rows[1, :1] = rows[0, :1]
    return rows


class RandomDrafter(Drafter):
    max_nodes = 16

    def propose(self, states):
        return [
            PrefixTree.from_drafts(s.tokens[-1], drafts_behind(s.tokens, min(4, s.num_slots)))
            for s in states
        ]


@torch.no_grad()
def written_plainly(kind: str, text: str, prompt: list[int], count: int):
    """What the rule should write: whole texts are read, tokens are compared one by one."""
    base = model_of(kind).base
    tokens, calls, relaxed = list(prompt), 1, []

    def logits_behind(so_far):
        return base(input_ids=torch.tensor([so_far])).logits[0, -1].double()

    tokens.append(int(logits_behind(tokens).argmax()))
    while len(tokens) < len(prompt) + count:
        calls += 1
        slots = min(4, len(prompt) + count - len(tokens) - 1)
        rows = drafts_behind(tokens, slots).tolist() if slots else []
        kept: list[int] = []
        while True:
            logits = logits_behind(tokens + kept)
            best = token = int(logits.argmax())
            offered = [r[len(kept)] for r in rows if r[: len(kept)] == kept and len(kept) < slots]
            passing = [o for o in offered if admits(text, logits, best, o)]
            if passing and best not in offered:
                token = max(passing, key=lambda o: float(logits[o]))
            kept.append(token)
            if token != best:
                relaxed.append(float(logits[best] - logits[token]))
            if token not in offered:
                break
        tokens += kept
    return tokens[len(prompt) :], calls, sum(relaxed), len(relaxed)


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_rules_write_what_a_plain_loop_writes(kind, text):
    wanted = written_plainly(kind, text, PROMPT, 18)
    model, heads = model_of(kind).base, model_of(kind).heads
    for way in ("tree", "rows"):
        found = decode(
            model, PROMPT, RandomDrafter(), heads=heads, max_new_tokens=18,
            acceptance=parse_acceptance(text), layout=way,
        )  # fmt: skip
        stats = found.stats
        assert (found.token_ids, stats.target_calls) == wanted[:2], way
        assert stats.regret == pytest.approx(wanted[2], abs=1e-3), way
        assert stats.relaxed_tokens == wanted[3] > 0, way
        assert (found.acceptance, found.lossless) == (text.split(":")[0], False)
    prompts = [PROMPT, [7], [1, 2, 3, 4, 5, 6, 7]]
    batch = decode(
        model, prompts, RandomDrafter(), heads=heads, max_new_tokens=18,
        acceptance=parse_acceptance(text),
    )  # fmt: skip
    for found, prompt in zip(batch, prompts, strict=True):
        assert found.token_ids == written_plainly(kind, text, prompt, 18)[0]


@pytest.mark.parametrize(
    "text",
    ["exact", "top_k:4", "specdec++:3,1.0", "typical:0.09,0.3",
     "sampled:0.8,top_k=5,top_p=0.95,seed=1", "rejection:1.0,min_p=0.1,seed=0"],
)  # fmt: skip
def test_acceptance_as_text(text):
    rule = parse_acceptance(text)
    assert str(rule) == text
    assert str(parse_acceptance(str(rule))) == text
    assert rule.lossless == text.startswith(("exact", "sampled", "rejection"))
    assert rule.guarantee


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk:3", r"unknown rule 'topk'; did you mean 'top_k'\? expected one of exact, top_k"),
        ("top_k", "'top_k': missing a required argument: 'k'; such as top_k:4"),
        ("top_k:4.5", "TopKMatch: k is 4.5; expected an integer, 1 or more"),
        ("sampled:0.8,top_k=0.5", "top_k is 0.5; expected an integer, 1 or more"),
        ("sampled:0.8,seed=0.5", "sampling: seed is 0.5; expected an integer"),
        ("typical:0.1,x", "could not convert string to float: 'x'; such as typical:0.09,0.3"),
        ("top_k:0", "TopKMatch: k is 0; expected 1 or more"),
        ("typical:1,2,3", "'typical:1,2,3': too many positional arguments; such as typical:0"),
        ("typical:1.5", "Typical: epsilon is 1.5; expected above 0 and below 1"),
        ("specdec++:3,-1", r"tau is -1; expected a finite number, 0 or more"),
        ("sampled:0.0", r"temperature is 0\.0; expected a number above 0; .*Exact"),
        ("sampled:1,top_q=3", "'sampled:1,top_q=3': got an unexpected keyword argument 'top_q'"),
    ],
)
def test_acceptance_in_bad_text_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_acceptance(text)
