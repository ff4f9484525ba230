"""The peers' drafts that bench_peers.py rebuilds, and how it counts, checks and writes."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")

import torch

import lattice_bpd.decode.drafters as ld
from blockwise_models import VOCAB, model_of, plain_greedy
from lattice_bpd import NGramLM
from lattice_bpd_kim2024.small_models import build_small_gpt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

peer_trees = importlib.import_module("peer_trees")
peer_drafters = importlib.import_module("peer_drafters")
peer_targets = importlib.import_module("peer_targets")
peer_lines = importlib.import_module("peer_lines")
peer_tables = importlib.import_module("peer_tables")
bench_peers = importlib.import_module("bench_peers")

LIMITS = {"max_new_tokens": 24, "stop_token_ids": [VOCAB - 1]}


def random_log_probs(rng, slots, ranks):
    """(H, k) natural logs in falling order; a part of the mass is on other tokens."""
    probabilities = rng.dirichlet(np.ones(ranks + 2), size=slots)
    return np.log(-np.sort(-probabilities, axis=1)[:, :ranks])


def prefixes_of(tree):
    """Each node as the ranks on its path, with its score."""
    paths = []
    for parent, slot, rank in zip(tree.parents, tree.slots, tree.ranks, strict=True):
        above = () if parent < 0 else paths[parent]
        assert len(above) == slot
        paths.append((*above, int(rank)))
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, tree.scores.tolist(), strict=True))


def score(log_probs, prefix):
    return sum(log_probs[slot, rank] for slot, rank in enumerate(prefix))


def all_prefixes(slots, ranks):
    return [p for n in range(1, slots + 1) for p in itertools.product(range(ranks), repeat=n)]


@pytest.mark.parametrize("seed", range(4))
def test_the_heap_gives_the_best_of_all_trees(seed):
    log_probs = random_log_probs(np.random.default_rng(seed), 3, 2)
    prefixes = all_prefixes(3, 2)
    for nodes in (1, 2, 4, 5):
        best = max(
            sum(math.exp(score(log_probs, prefix)) for prefix in chosen)
            for chosen in itertools.combinations(prefixes, nodes)
            if all(len(prefix) == 1 or prefix[:-1] in chosen for prefix in chosen)
        )
        found = prefixes_of(peer_trees.best_first_tree(log_probs, nodes))
        assert len(found) == nodes
        assert sum(math.exp(value) for value in found.values()) == pytest.approx(best)
        for prefix, value in found.items():
            assert value == pytest.approx(score(log_probs, prefix))


@pytest.mark.parametrize("seed", range(5))
def test_medusas_tree_is_the_greedy_choice(seed):
    accuracies = np.random.default_rng(seed).random((3, 3))
    with np.errstate(divide="ignore"):
        logs = np.log(accuracies)
    chosen: list[tuple[int, ...]] = []
    while len(chosen) < 12:
        open_nodes = [
            prefix for prefix in all_prefixes(3, 3)
            if prefix not in chosen and (len(prefix) == 1 or prefix[:-1] in chosen)
        ]  # fmt: skip
        chosen.append(max(open_nodes, key=lambda prefix: score(logs, prefix)))
    assert list(prefixes_of(peer_trees.medusa_tree(accuracies, 12))) == chosen


def naive_eagle2(log_probs, max_nodes, beam):
    """Level by level over tuples of ranks."""
    children = range(min(beam, log_probs.shape[1]))
    level = [(rank,) for rank in children]
    nodes = list(level)
    for _ in range(1, len(log_probs)):
        level = sorted(level, key=lambda prefix: -score(log_probs, prefix))[:beam]
        level = [(*prefix, rank) for prefix in level for rank in children]
        nodes += level
    return set(sorted(nodes, key=lambda prefix: -score(log_probs, prefix))[:max_nodes])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("beam", "nodes"), [(1, 9), (2, 7), (3, 12), (2, 100)])
def test_eagle2_expands_a_beam_and_keeps_the_best(seed, beam, nodes):
    log_probs = random_log_probs(np.random.default_rng(seed), 4, 4)
    found = prefixes_of(peer_trees.eagle2_tree(log_probs, nodes, beam))
    assert set(found) == naive_eagle2(log_probs, nodes, beam)
    for prefix, value in found.items():
        assert value == pytest.approx(score(log_probs, prefix))


@pytest.mark.parametrize("seed", range(12))
def test_the_automaton_finds_the_longest_repeated_suffix(seed):
    rng = np.random.default_rng(seed)
    text = rng.integers(0, rng.integers(1, 5), size=60).tolist()
    automaton = peer_trees.SuffixAutomaton()
    assert automaton.match() == (0, 0)
    for end in range(1, len(text) + 1):
        automaton.append(text[end - 1])
        expected = (0, 0)
        for size in range(end - 1, 0, -1):
            ends = [e for e in range(size, end) if text[e - size : e] == text[end - size : end]]
            if ends:
                expected = (ends[0], size)
                break
        assert automaton.match() == expected
        following = text[expected[0] : end][:4] if expected[1] else []
        assert automaton.continuation(4) == following


@pytest.fixture
def target():
    torch.manual_seed(0)
    draft = build_small_gpt(VOCAB, hidden_size=16, num_layers=1, num_heads=2, max_positions=64).base
    draft.eval()
    lm = NGramLM.train([np.arange(4000, dtype=np.int32) * 5 % VOCAB], 2, vocab_size=VOCAB,
                       smoothing="witten_bell")  # fmt: skip
    prompts = [[3, 8, 13, 18, 23], [40, 2, 7]]
    return peer_targets.Target(
        "tiny", "a test", model_of("trained"), lm, draft, None, prompts, prompts[::-1],
        LIMITS["max_new_tokens"], LIMITS["stop_token_ids"],
    )  # fmt: skip


def test_accuracies_are_those_of_the_heads(target):
    size = peer_targets.Size(alphas=(0.5,), temperatures=(1.0, 2.0))
    found = peer_targets.fit(target, size)
    model, right, count = target.heads, np.zeros((4, 16)), np.zeros(4)
    for prompt in target.tune_prompts:
        output = plain_greedy(model, prompt, 24)
        output = output[: output.index(VOCAB - 1) + 1] if VOCAB - 1 in output else output
        text = torch.tensor([prompt + output])
        with torch.inference_mode():
            states = model(text).hidden[0]
            guesses = model.head_logits(states).topk(16).indices.numpy()
        for place in range(len(prompt) - 1, text.shape[1] - 1):
            # The state at `place` gave the exact token at place + 1, and the last token of the
            # output is never drafted: the call that verifies the one before gives it.
            longest = 24 - (place + 2 - len(prompt)) - 1
            for slot in range(min(4, longest)):
                if place + 2 + slot < text.shape[1]:
                    right[slot] += guesses[place, slot] == int(text[0, place + 2 + slot])
                    count[slot] += 1
    np.testing.assert_allclose(found.accuracies, right / count[:, None])
    assert found.options["tree_0gram"].alpha == 0.0
    assert found.options["tree"].alpha == 0.5


def test_a_wrong_output_stops_the_benchmark(target, capsys):
    greedy = peer_lines.own_line(target, "greedy", "greedy", peer_lines.OURS, ld.NoDrafter())
    wrong = peer_lines.Line("wrong", "", peer_lines.OURS, lambda _: ([0] * 24, None))
    with pytest.raises(AssertionError, match="tiny, wrong: the output of prompt"):
        bench_peers.measure(target, [greedy, wrong], 2, 1)
    assert capsys.readouterr().out == ""

    def miscounting(prompt):
        output, calls = greedy.decode(prompt)
        return output, calls + 1

    lines = [peer_lines.Line("off", "", peer_lines.OURS, miscounting)]
    with pytest.raises(AssertionError, match="the loop counted"):
        bench_peers.measure(target, lines, 2, 1)


def test_a_whole_run_of_a_target(target, monkeypatch):
    monkeypatch.setattr(peer_lines, "MAX_NODES", 12)
    size = peer_targets.Size(
        timed_prompts=1, rounds=2, alphas=(0.5,), temperatures=(1.0,), budgets=(8,)
    )
    found = bench_peers.measure_target(target, size)
    rows = {line["name"]: line for line in found["lines"]}
    assert rows["greedy"]["tokens_per_call"]["value"] == 1.0
    assert rows["greedy"]["speed"]["median"] == 1.0
    assert rows["transformers_greedy"]["tokens_per_call"]["value"] == 1.0
    assert rows["transformers_greedy"]["speed_in_own_loop"]["median"] == 1.0
    for name in ("bpd", "medusa", "eagle2", "ddtree", "p_best", "chain", "tree"):
        assert rows[name]["tokens_per_call"]["value"] > 1.0, name
    assert {"assisted", "assisted_fixed", "prompt_lookup", "suffix_automaton", "mixture",
            "draft_model", "draft_model_tree"} <= rows.keys()  # fmt: skip
    # The heap is our tree without an LM, but for the candidates that it starts from.
    assert rows["ddtree"]["tokens_per_call"]["value"] == pytest.approx(
        rows["tree_0gram"]["tokens_per_call"]["value"], rel=0.1
    )
    assert rows["tree"]["over_tree"]["value"] == 0.0
    text = peer_tables.render({"targets": [found | {"quick": False}]})
    assert text.count("\n| ") == len(rows) + 2 + len(found["budgets"]) + 2
    assert "speed, x greedy" in text
    once = peer_tables.render({"targets": [found | {"quick": True, "rounds": 1}]})
    assert "speed" not in once.split("\n\n")[1]
    assert json.loads(json.dumps(found)) == found


def test_the_page_has_the_tables_of_the_results():
    results = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())
    page = ROOT / "research" / "kim2024" / "RESULTS.md"
    assert peer_tables.render(results) in page.read_text()
