"""The benchmarks at small sizes: prompts, LMs and answers, and the faults that they must report."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("jinja2")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CompileConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from lattice_bpd import NGramLM
from lattice_bpd.decode.drafter_file import DrafterFile
from lattice_bpd.draft.config import DraftConfig

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
        f"mixture, {sources}, {size}{predictions}"
        for sources in ("text", "text + LM")
        for size in ("16 nodes", "36 nodes", "any size")
        for predictions in ("", ", no predictions")
    ]
    ours += ["greedy, kernels of the core", "drafter of the folder"]
    assert set(results["lines"]) == {"transformers greedy", PROMPT_LOOKUP, *ours}
    for name in (*ours, PROMPT_LOOKUP):
        figures = results["lines"][name]["all"]
        assert figures["tokens_per_call"]["value"] >= figures["equal_texts"] == 1.0
        assert len(results["runs"][name]) == 3
    assert results["left_out"]["tree, heads + LM"] == "no heads"


def test_instructions_are_compared_on_like_machines_only(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = load("instruction_baseline")
    build = {"compiler": "GCC 12.2.0", "libc": "glibc 2.36", "instructions": "scalar avx2"}
    file = tmp_path / "instructions.json"
    monkeypatch.setattr(baseline, "BASELINE", file)
    file.write_text(json.dumps({"build": build, "instructions": {"a": 1000, "b": 1000}}))
    assert baseline.find_difference(build) is None
    compared = baseline.compare_counts({"a": 1019, "b": 1021, "c": 5}, baseline.read_baseline())
    assert [one.name for one in compared if one.complaint] == ["b", "c"]
    names = ["list_8x16", "tree_8x16", "list_8x16_scalar", "mixture_8x16"]
    counts = dict.fromkeys([*names, "list_8x16_large_vocabulary"], 2000)
    file.write_text(json.dumps({"build": build, "instructions": dict.fromkeys(counts, 1000)}))
    monkeypatch.setattr(baseline, "make_lm", lambda *_: None)
    monkeypatch.setattr(baseline, "make_zipf_text", lambda _: load("corpus").make_zipf_text(9999))
    monkeypatch.setattr(baseline, "count_instructions", lambda *_: (counts, build))
    assert len(baseline.check_instructions(renew=False)) == 5
    other = {**build, "instructions": "scalar"}  # a processor without AVX2
    monkeypatch.setattr(baseline, "count_instructions", lambda *_: (counts, other))
    assert baseline.check_instructions(renew=False) == []
    printed = capsys.readouterr().out
    assert "not judged: this machine has instructions 'scalar', the baseline" in printed


# README's picture
def test_readme_has_the_picture_of_the_figures(load: Any) -> None:
    picture = load("llm_picture")
    results = json.loads(picture.RESULTS.read_text())
    command = "python benchmarks/llm_picture.py"
    for theme in picture.THEMES:
        file = picture.IMAGES / f"llm-{theme}.svg"
        assert file.read_text() == picture.draw(results, theme), f"run {command}"
    readme = picture.README.read_text()
    assert readme == picture.fill_readme(results, readme), f"run {command}"


def test_a_picture_has_the_whole_answer_and_loads_nothing(load: Any) -> None:
    picture = load("llm_picture")
    answer = [("Well,\n\n", False), ("a <b> &", True), (" " + "long" * 20, True), ("er", False)]
    line = {"all": {"tokens_per_call": {"value": 2.5}, "speed": {"value": 2.0}}}
    results = {
        "lines": {"transformers greedy": line, "drafter of the folder": line},
        "example": {"question": 'Why "so"?', "calls": 3, "tokens": answer},
        "texts": {"all": {"prompts": 7}}, "model": "M", "dtype": "float32",
        "machine": {"processor": "AMD EPYC (family/model 1/2)", "cores": 2,
                    "search_instructions": ["scalar", "avx2"]},
    }  # fmt: skip
    pieces = list(picture.wrap(answer))
    assert [text for _, _, text, _ in pieces] == ["Well,", "a <b> &", " " + "long" * 20, "er"]
    assert [(row, column) for row, column, _, _ in pieces] == [(0, 0), (2, 0), (2, 7), (2, 88)]
    assert {row for row, *_ in picture.wrap([(" word", True)] * 40)} == {0, 1}
    root = ElementTree.fromstring(picture.draw(results, "dark"))
    name = "{http://www.w3.org/2000/svg}"
    assert {element.tag.removeprefix(name) for element in root.iter()} == {
        "svg", "title", "desc", "style", "text", "rect"
    }  # fmt: skip
    texts = [element.text for element in root.iter(f"{name}text")]
    assert texts[:5] == ['Why "so"?', "Well,", "a <b> &", "long" * 20, "er"]
    assert "4 tokens in 3 calls of the model instead of 4; green: 2 accepted draft tokens" in texts
    assert "url(" not in picture.draw(results, "light")
    readme = picture.fill_readme(results, f"# x\n{picture.BEGIN}old\n{picture.END}rest\n")
    assert "on 2 cores of an AMD EPYC without AVX-512" in readme
    assert readme == f"# x\n{picture.BEGIN}{picture.describe_in_readme(results)}{picture.END}rest\n"


def test_the_example_is_a_typical_answer(load: Any) -> None:
    bench, lines = load("bench_llm"), load("llm_lines")
    turns = {"long": "x" * 999, "lucky": "a?", "typical": "b?", "differs": "c?"}
    rows = [{"id": name, "messages": [{"content": text}]} for name, text in turns.items()]
    prompts = [bench.Prompt(name, "kind", [1]) for name in turns]
    accepted = {"long": [1, 1], "lucky": [4], "typical": [2, 0, 0], "differs": [1, 1]}
    greedy, ours = (lines.Line(name, lambda *_: None) for name in ("greedy", "ours"))
    for name, counts in accepted.items():
        output = list(range(sum(counts) + len(counts) + 1))
        greedy.runs.append(lines.Run(output, len(output), {}, []))
        mine = output if name != "differs" else output[::-1]
        ours.runs.append(lines.Run(mine, len(counts) + 1, {}, counts))
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join(f"t{one}" for one in ids))
    example = bench.pick_example([greedy, ours], rows, prompts, tokenizer)
    assert (example["prompt"], example["question"], example["calls"]) == ("typical", "b?", 4)
    assert example["tokens"] == [
        ("t0", False), ("t1", True), ("t2", True), ("t3", False), ("t4", False), ("t5", False)
    ]  # fmt: skip
    for run in ours.runs:
        run.accepted.clear()
    assert bench.pick_example([greedy, ours], rows, prompts, tokenizer) is None


def test_the_compiled_line_is_greedy_and_compiles_before_it_is_measured(load, folder):
    """On a CPU, where transformers compiles only if it is made to."""
    bench, lines = load("bench_llm"), load("llm_lines")
    assert lines.why_not_compiled("cpu") == "transformers compiles on a GPU"
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    made, skipped = lines.make_lines(model, model, {}, quick=True)
    assert lines.COMPILED in skipped
    assert lines.COMPILED not in [line.name for line in made]
    config = CompileConfig(backend="eager")
    config._compile_all_devices = True
    line = lines.make_compiled_line(model, compile_config=config)
    line.prepare(40, 12)
    counters = torch._dynamo.utils.counters["stats"]
    compiled = counters["unique_graphs"]
    assert compiled > 0
    counter = bench.CallCounter(model)
    for prompt in ([3, 4, 5], [7] * 30, [2] * 40):
        greedy = made[0].run(prompt, 12, counter)
        assert line.run(prompt, 12, counter)[:2] == greedy[:2]  # tokens and calls
    assert counters["unique_graphs"] == compiled
    torch._dynamo.reset()
