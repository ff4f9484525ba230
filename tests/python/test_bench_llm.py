"""benchmarks/bench_llm.py on a tiny model: prompts, equality with greedy's output, figures."""

from __future__ import annotations

import importlib
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("jinja2")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROMPT_LOOKUP = "transformers prompt lookup"
MODULES = ("bench_llm", "llm_lines", "llm_prompts", "peer_drafters", "peer_trees", "corpus",
           "report", "machine")  # fmt: skip


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("bench_llm")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama with random weights, and a tokenizer of bytes with a chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


def test_small_run(bench: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lattice_bpd import NGramLM
    from lattice_bpd.decode.strategies import DrafterFile
    from lattice_bpd.draft.config import DraftConfig

    path, lm = folder / "figures.json", folder / "own.lm"
    rng = np.random.default_rng(0)
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    texts = [rng.integers(1, size, 400)]
    NGramLM.train(texts, 3, vocab_size=size, smoothing="witten_bell").save(lm)
    about = {"file": "own.lm", "order": 3, "vocab_size": size}
    config = DraftConfig("mixture", sources=("lm", "text"))
    DrafterFile(config, size, 0, lms=[about]).save(folder / "drafter.json")
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


def test_a_chat_is_measured_at_its_last_turn(bench: Any) -> None:
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
    prompt = bench.make_prompt(row, Template(), answer)
    assert asked == [[1], [1, 11, 2]]
    assert prompt.token_ids == [1, 11, 2, 12, 3]


def test_transformers_drafts_the_chain_of_the_heads(bench: Any, folder: Path) -> None:
    """Its calls and tokens are those of strategy "bpd" in our loop."""
    import torch
    from transformers import AutoModelForCausalLM

    from lattice_bpd.decode import generate

    lines = importlib.import_module("llm_lines")
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
