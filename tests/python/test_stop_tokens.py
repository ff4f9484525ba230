"""Stop tokens: every command ends a text where the model's own `generate` ends it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch
from transformers import AutoModelForCausalLM

from lattice_bpd import NGramLM
from lattice_bpd.cli import main
from lattice_bpd_kim2024.small_models import build_small_gpt, train_byte_bpe

TEXT = "the cat sat on the mat and the dog ran to the cat, while it rained all day long\n" * 9
PROMPTS = ["the cat sat on the mat and the dog", "the dog ran to the cat, while it"]
LIMIT, OTHER = 24, 299  # OTHER is never generated


def generated(model: Any, ids: list[int], ends: list[int]) -> list[int]:
    """What `model.generate` adds to a prompt."""
    tokens = torch.tensor([ids])
    output = model.generate(
        tokens, do_sample=False, max_new_tokens=LIMIT, pad_token_id=0, eos_token_id=ends or None
    )
    tail: list[int] = output[0, len(ids) :].tolist()
    return tail


@pytest.fixture(scope="module")
def parts() -> SimpleNamespace:
    """A blockwise model, its tokenizer and prompts; the end token is one that it generates."""
    torch.manual_seed(4)
    tokenizer = train_byte_bpe([TEXT], 300)
    model = build_small_gpt(300, hidden_size=48, num_layers=2, num_heads=4, max_positions=64)
    with torch.no_grad():
        for weight in model.base.parameters():
            weight.mul_(3)  # a text of many different tokens
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    plain = [generated(model.base, ids, []) for ids in prompts]
    end = next(t for n, t in enumerate(plain[0]) if n > 2 and t not in plain[0][:n])
    assert 0 not in plain[0]  # the id of <|endoftext|>
    return SimpleNamespace(model=model, tokenizer=tokenizer, prompts=prompts, end=end, plain=plain)


SOURCES = {
    "generation config": (["end"], None, False, ["end"]),
    "list of the generation config": (["end", OTHER], None, False, ["end", OTHER]),
    "generation config before the others": (["end"], [OTHER], True, ["end"]),
    "none of the generation config": ([-1], ["end"], True, []),
    "config": (None, ["end"], False, ["end"]),
    "list of the config": (None, ["end", OTHER], True, ["end", OTHER]),
    "tokenizer": (None, None, True, ["end"]),
    "none": (None, None, False, []),
}
"""End tokens of the generation config and of the config, whether the tokenizer's EOS token is the
end token, and where texts end."""


def write_model(parts: SimpleNamespace, folder: Path, source: str) -> list[int]:
    """Write a model whose end token is named by one source, and return its stop tokens.

    The tokenizer has a token <|endoftext|>, which is no stop token here; its EOS token is another.
    """

    def ids(tokens: list[Any]) -> list[int]:
        return [parts.end if token == "end" else token for token in tokens]

    of_generation, of_config, of_tokenizer, ends = SOURCES[source]
    parts.model.save_pretrained(folder)
    for name, value in (("generation_config", of_generation), ("config", of_config)):
        path = folder / f"{name}.json"
        named = None if value is None else ids(value) if len(value) > 1 else ids(value)[0]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": named}))
    parts.tokenizer.save(str(folder / "tokenizer.json"))
    word = parts.tokenizer.id_to_token(parts.end)
    content = {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"}
    content |= {"eos_token": word} if of_tokenizer else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    NGramLM.train(parts.prompts, 2, vocab_size=300, smoothing="witten_bell").save(
        folder / "ngram.lm"
    )
    return ids(ends)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    status = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


@pytest.mark.parametrize("source", SOURCES)
def test_commands_end_where_the_model_ends(parts, source, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    from lattice_bpd_kim2024.record.files import read_record

    folder = tmp_path / "model"
    ends = write_model(parts, folder, source)
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = [generated(model, ids, ends) for ids in parts.prompts]
    assert (len(expected[0]) < LIMIT) == bool(ends)
    for strategy in ("tree", "greedy", "mixture"):
        out = run(
            capsys, "generate", folder, "--prompt", PROMPTS[0], "--strategy", strategy,
            "--max-new-tokens", LIMIT, "--json",
        )  # fmt: skip
        report = json.loads(out)
        assert report["token_ids"] == expected[0], strategy
        assert report["finish"] == ("stop_token" if ends else "length")
    if source not in ("list of the generation config", "config", "none"):
        return
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in PROMPTS))
    common = ["--model", folder, "--task", "jsonl", "--data", data, "--max-new-tokens", LIMIT]
    run(capsys, "record", *common, "--out", tmp_path / "record")
    run(
        capsys, "evaluate", *common, "--lm", folder / "ngram.lm", "--out", tmp_path / "run",
        "--strategies", "bpd,tree", "--alphas", "0.5", "--temperatures", "1",
    )  # fmt: skip
    for path in (tmp_path / "record", tmp_path / "run" / "record" / "jsonl"):
        record = read_record(path)
        assert [text.output.tolist() for text in record.texts] == expected
        assert record.manifest.stop_token_ids == sorted(ends)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    for check in results["tasks"]["jsonl"]["live"]:
        assert check["lossless"] == check["texts"]


@pytest.mark.parametrize("source", ["list of the generation config", "config", "none"])
@pytest.mark.parametrize("length", [1, 5])
def test_speculation_is_measured_on_texts_that_end(parts, source, length, tmp_path, capsys):
    """Sampling from the best token alone is greedy decoding; a draft model is its own target."""
    pytest.importorskip("rich")
    folder, data, report = (tmp_path / name for name in ("model", "prompts.jsonl", "report.json"))
    ends = write_model(parts, folder, source)
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in PROMPTS))
    run(
        capsys, "speculation", folder, "--draft-model", folder, "--task", "jsonl", "--data", data,
        "--max-new-tokens", LIMIT, "--accept", "rejection:1.0,top_k=1", "--draft-lengths", length,
        "--json", report,
    )  # fmt: skip
    (line,) = json.loads(report.read_text())["speculation"]
    expected = [len(generated(parts.model.base, ids, ends)) for ids in parts.prompts]
    assert line["tokens"] == sum(expected)
    assert line["measured_acceptance_rate"] == 1.0
    assert line["measured_tokens_per_call"] == length + 1
