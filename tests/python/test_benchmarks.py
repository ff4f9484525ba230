"""The benchmarks at small sizes: prompts, LMs and answers, and the faults that they must report."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("jinja2")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import lattice_bpd.decode.drafters as ld
from blockwise_models import VOCAB, model_of
from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.decode.strategies import DrafterFile
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_conformance.cases import Case
from lattice_bpd_conformance.check import Verdict
from lattice_bpd_kim2024.small_models import build_small_gpt

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROMPTS = BENCHMARKS / "prompts"
PROMPT_LOOKUP = "transformers prompt lookup"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of benchmarks/ by name; later tests get new ones."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(PROMPTS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in {*sys.modules} - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def read_prompts(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROMPTS / name).read_text(encoding="utf-8").splitlines()]


def content(row: dict[str, Any]) -> str:
    texts: list[str] = row.get("turns") or [message["content"] for message in row["messages"]]
    assert len(texts) > 1 if "turns" in row else len(texts) == 1
    assert all(text.strip() == text and text for text in texts), row["id"]
    return "\n".join(texts)


def test_prompts_of_training_and_of_the_yardstick_share_no_text(load: Any) -> None:
    composer = load("make_train")
    rows, train = read_prompts("prompts.jsonl"), read_prompts("train.jsonl")
    assert Counter((row["kind"], row["split"]) for row in rows) == {
        (kind, split): 10 for kind in composer.KINDS for split in ("tuning", "test")
    }
    assert {row["kind"] for row in train[:50]} == set(composer.KINDS)
    assert len({row["id"] for row in rows + train}) == len(rows + train)
    assert len({content(row) for row in rows + train}) == len(rows + train)
    held_out = set().union(*(composer.word_runs(content(row)) for row in rows))
    for row in train:
        assert held_out.isdisjoint(composer.word_runs(content(row))), row["id"]


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.KatzWarning")
def test_lms_of_other_sizes_give_the_same_answers(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """bench_scale.py with Zipf text for all of its texts; then with an engine that errs."""
    pytest.importorskip("pynini")  # OpenFst answers, too
    scale, corpus, engines, lattices = map(load, ("bench_scale", "corpus", "engines", "lattices"))
    text = corpus.make_zipf_text(6000)
    dense = corpus.make_dense_text(text, 50_000, seed=1)
    settings = {
        "FOLDER": tmp_path, "ORDER": 3, "MEMORY": "100M", "PRUNED": "5k", "ROUNDS": 1,
        "PAPER_BY_SHAPE": {(4, 2): 1.038, (8, 16): 1.63}, "PAPER_BY_DRAFTS": {16: 1.983},
        "load_all_text": lambda: text, "load_corpus": lambda *_: text,
        "make_dense_text": lambda *_: dense,
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setattr(scale, name, value)
    monkeypatch.setattr(engines, "CACHE", tmp_path)
    path = tmp_path / "scale.json"
    monkeypatch.setattr(sys, "argv", ["bench_scale.py", "--json", str(path)])
    scale.main()
    results = json.loads(path.read_text())
    assert results["tokens"] == {"real": 6000, "synthetic": 50_000}
    assert sum(results["lms"]["pruned"]["num_ngrams"]) < sum(results["lms"]["large"]["num_ngrams"])
    plain = lattices.rescore

    def swapped(some: Any, lm: Any, drafts: int, engine: str, threads: int = 1) -> Any:
        token_ids, scores, counts = plain(some, lm, drafts, engine, threads)
        if engine == "openfst":
            token_ids[0, [0, 1]] = token_ids[0, [1, 0]]
        return token_ids, scores, counts

    lms = {"small": engines.make_lm("small.lm", text)}
    scale.check_answers(lms)
    monkeypatch.setattr(lattices, "rescore", swapped)
    with pytest.raises(AssertionError):
        scale.check_answers(lms)


def test_other_output_is_a_failure(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    gpu = load("check_gpu")
    arguments = {"device": "cpu", "size": "tiny", "minutes": 9.0, "backend": None}
    check = gpu.Check(argparse.Namespace(**arguments, out=tmp_path / "gpu.json"))
    monkeypatch.setattr(gpu, "list_quick_cases", lambda: [Case("tree"), Case("greedy")])
    output = check.check_lossless(torch.float32, "sdpa")
    assert (output["equal"], check.failures) == (2, [])
    verdict = Verdict(Case("tree"), "different", "token 1, expected 2")
    monkeypatch.setattr(gpu.Checker, "run", lambda *_: [verdict])
    check.check_lossless(torch.float32, "sdpa")
    assert check.failures == ["lossless, sdpa, float32, tree, 1 prompt: different: "
                              "token 1, expected 2"]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama with random weights, and a tokenizer of bytes with a chat template."""
    torch.manual_seed(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(["<end>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = (
        "{% for m in messages %}{{ m.role[0] + ':' + m.content + ';' }}{% endfor %}"
    )
    fast.save_pretrained(tmp_path)
    config = LlamaConfig(
        vocab_size=len(vocab), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=8192, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_an_llm_by_every_strategy(load: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lm = folder / "figures.json", folder / "own.lm"
    rng = np.random.default_rng(0)
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    texts = [rng.integers(1, size, 400)]
    NGramLM.train(texts, 3, vocab_size=size, smoothing="witten_bell").save(lm)
    about = {"file": "own.lm", "order": 3, "vocab_size": size}
    config = DraftConfig("mixture", sources=("lm", "text"))
    DrafterFile(config, size, 0, lms=[about]).save(folder / "drafter.json")
    bench = load("bench_llm")
    rows = bench.read_rows("test")
    chosen = [rows[i] for i in (0, 2, 7)]  # the last one is a chat
    too_long = {**rows[0], "id": "long", "messages": [{"role": "user", "content": "x" * 9000}]}
    chosen.insert(1, too_long)
    monkeypatch.setattr(bench, "read_rows", lambda _split: chosen)
    arguments = ["bench_llm.py", "--model", str(folder), "--drafter", str(folder)]
    arguments += ["--tokens", "12", "--dtype", "float32"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--json", str(path)])
    bench.main()
    results = json.loads(path.read_text())
    assert results["texts"]["all"]["prompts"] == 3
    assert set(results["texts"]) == {"all", "writing", "mathematics", "chat"}
    ours = [
        f"mixture, {sources}, {size}"
        for sources in ("text", "text + LM")
        for size in ("16 nodes", "any size")
    ]
    ours += ["greedy, attention of the core", "drafter of the folder"]
    assert set(results["lines"]) == {"transformers greedy", PROMPT_LOOKUP, *ours}
    for name in (*ours, PROMPT_LOOKUP):
        figures = results["lines"][name]["all"]
        assert figures["tokens_per_call"]["value"] >= figures["equal_texts"] == 1.0
        assert len(results["runs"][name]) == 3
    assert results["left_out"]["tree, heads + LM"] == "no heads"


def test_a_chat_is_measured_at_its_last_turn(load: Any) -> None:
    class Template:
        chat_template = "lengths"

        def apply_chat_template(self, messages: list[dict[str, str]], **_options: Any) -> Any:
            return {"input_ids": [len(m["content"]) for m in messages]}

        def decode(self, token_ids: list[int], **_options: Any) -> str:
            return "x" * token_ids[0]

    asked: list[list[int]] = []

    def answer(token_ids: list[int]) -> list[int]:
        asked.append(token_ids)
        return [10 + len(asked)]

    row = {"id": "chat-1", "kind": "chat", "turns": ["a", "bb", "ccc"]}
    prompt = load("bench_llm").make_prompt(row, Template(), answer)
    assert asked == [[1], [1, 11, 2]]
    assert prompt.token_ids == [1, 11, 2, 12, 3]


def test_transformers_drafts_the_chain_of_the_heads(load: Any, folder: Path) -> None:
    """Its calls and tokens are those of strategy "bpd" in our loop."""
    lines = load("llm_lines")
    if not hasattr(lines.CandidateGenerator, "requires_model_outputs"):
        pytest.skip("transformers gives no hidden states to drafters")
    model = AutoModelForCausalLM.from_pretrained(folder)
    output, prompt = model.get_output_embeddings(), list(range(2, 30))
    plain = lines._transformers(model, {})(prompt, 40)[0]
    follows = dict(pairwise(plain))

    def heads(hidden: torch.Tensor) -> torch.Tensor:
        """What followed the exact token in the output; the third slot is wrong for even tokens."""
        logits = torch.zeros(len(hidden), 3, model.config.vocab_size)
        for row, token in enumerate(output(hidden).argmax(dim=-1).tolist()):
            for slot in range(3):
                token = follows.get(token, 0)
                logits[row, slot, token if slot < 2 or token % 2 else 1] = 1.0
        return logits

    drafts = lines.as_draft_heads(heads, lines.CausalLMTarget(model))
    counter = lines.CallCounter(model)
    chain = lines.Line("chain", lines._heads_chain(model, drafts)).run(prompt, 40, counter)
    ours = generate(model, prompt, "bpd", heads=heads, max_new_tokens=40)
    assert chain.output == ours.token_ids == plain
    assert chain.calls == ours.stats.target_calls < 30
    assert "_get_candidate_generator" not in vars(model)


@pytest.fixture
def target(load: Any) -> Any:
    torch.manual_seed(0)
    draft = build_small_gpt(VOCAB, hidden_size=16, num_layers=1, num_heads=2, max_positions=64).base
    draft.eval()
    lm = NGramLM.train([np.arange(4000, dtype=np.int32) * 5 % VOCAB], 2, vocab_size=VOCAB,
                       smoothing="witten_bell")  # fmt: skip
    prompts = [[3, 8, 13, 18, 23], [40, 2, 7]]
    return load("peer_targets").Target(
        "tiny", "a test", model_of("trained"), lm, draft, None, prompts, prompts[::-1],
        24, [VOCAB - 1],
    )  # fmt: skip


def test_a_wrong_output_stops_the_benchmark(load: Any, target: Any) -> None:
    peer_lines = load("peer_lines")
    greedy = peer_lines.own_line(target, "greedy", "greedy", peer_lines.OURS, ld.NoDrafter())
    wrong = peer_lines.Line("wrong", "", peer_lines.OURS, lambda _: ([0] * 24, None))
    with pytest.raises(AssertionError, match="tiny, wrong: the output of prompt"):
        load("bench_peers").measure(target, [greedy, wrong], 2, 1)


def test_peers_on_a_target(load: Any, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load("peer_lines"), "MAX_NODES", 12)
    size = load("peer_targets").Size(
        timed_prompts=1, rounds=2, alphas=(0.5,), temperatures=(1.0,), budgets=(8,)
    )
    found = load("bench_peers").measure_target(target, size)
    rows = {line["name"]: line for line in found["lines"]}
    assert rows["greedy"]["tokens_per_call"]["value"] == 1.0
    assert rows["transformers_greedy"]["tokens_per_call"]["value"] == 1.0
    for name in ("bpd", "medusa", "eagle2", "ddtree", "p_best", "chain", "tree"):
        assert rows[name]["tokens_per_call"]["value"] > 1.0, name
    assert {"assisted", "assisted_fixed", "prompt_lookup", "suffix_automaton", "mixture",
            "draft_model", "draft_model_tree"} <= rows.keys()  # fmt: skip
    # The heap is our tree without an LM, but for the candidates that it starts from.
    assert rows["ddtree"]["tokens_per_call"]["value"] == pytest.approx(
        rows["tree_0gram"]["tokens_per_call"]["value"], rel=0.1
    )
    assert rows["tree"]["over_tree"]["value"] == 0.0
    text = load("peer_tables").render({"targets": [found | {"quick": False}]})
    assert text.count("\n| ") == len(rows) + 2 + len(found["budgets"]) + 2


def test_the_page_has_the_tables_of_the_results(load: Any) -> None:
    results = json.loads((BENCHMARKS / "results" / "peers.json").read_text())
    page = BENCHMARKS.parent / "research" / "kim2024" / "RESULTS.md"
    assert load("peer_tables").render(results) in page.read_text()
