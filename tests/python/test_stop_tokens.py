"""Stop tokens: every command ends a text where the model's own `generate` ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from transformers import AutoModelForCausalLM

from build_runs import chat_tokenizer
from lattice_bpd.cli import main
from lattice_bpd.models import BlockwiseHeads
from planted_drafts import plain_continuation
from target_models import COUNT, PROMPTS, VOCAB, build_target, generated

PLAIN = generated("llama")[0]
END = next(token for n, token in enumerate(PLAIN) if n > 2 and token not in PLAIN[:n])
NEVER = next(token for token in range(VOCAB) if token not in PLAIN)
TEXTS = [" ".join(chat_tokenizer().convert_ids_to_tokens(prompt)) for prompt in PROMPTS[:2]]
SOURCES = {
    "generation config": (END, None, False, [END]),
    "list of the generation config": ([END, NEVER], None, False, [END, NEVER]),
    "generation config before the others": (END, NEVER, True, [END]),
    "none of the generation config": (-1, END, True, []),
    "config": (None, END, False, [END]),
    "list of the config": (None, [END, NEVER], True, [END, NEVER]),
    "tokenizer": (None, None, True, [END]),
    "none": (None, None, False, []),
}
"""End tokens of the generation config and of the config, whether the tokenizer's EOS token is the
end token, and where texts end."""


def write_model(folder: Path, source: str) -> list[list[int]]:
    """Write a model whose end token is named by one source; what its `generate` adds to TEXTS."""
    of_generation, of_config, of_tokenizer, ends = SOURCES[source]
    base = build_target("llama")
    base.save_pretrained(folder)
    BlockwiseHeads(base.config.hidden_size, 3).save_pretrained(folder, base)
    for name, value in (("generation_config", of_generation), ("config", of_config)):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": value}))
    tokenizer = chat_tokenizer()
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(END) if of_tokenizer else None
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    options = {"max_new_tokens": COUNT, "eos_token_id": ends or None}
    return [plain_continuation(model, prompt, **options) for prompt in PROMPTS[:2]]


def run(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.mark.parametrize("source", SOURCES)
def test_generate_ends_where_the_model_ends(source, tmp_path, capsys):
    expected, ends = write_model(tmp_path, source)[0], SOURCES[source][3]
    assert (len(expected) < COUNT) == bool(ends)
    capsys.readouterr()
    run("generate", tmp_path, "--prompt", TEXTS[0], "--max-new-tokens", COUNT, "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["token_ids"] == expected
    assert report["finish"] == ("stop_token" if ends else "length")


def test_records_and_speculation_end_there_too(tmp_path):
    """Sampling from the best token alone is greedy decoding; a draft model is its own target."""
    pytest.importorskip("pyarrow")
    from lattice_bpd_kim2024.record.files import read_record

    source = "list of the generation config"
    expected = write_model(tmp_path / "model", source)
    data, report = tmp_path / "prompts.jsonl", tmp_path / "report.json"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    common = ["--task", "jsonl", "--data", data, "--max-new-tokens", COUNT]
    run("record", "--model", tmp_path / "model", *common, "--out", tmp_path / "record")
    record = read_record(tmp_path / "record")
    assert [text.output.tolist() for text in record.texts] == expected
    assert record.manifest.stop_token_ids == sorted(SOURCES[source][3])
    run(
        "speculation", tmp_path / "model", "--draft-model", tmp_path / "model", *common,
        "--accept", "rejection:1.0,top_k=1", "--draft-lengths", 5, "--json", report,
    )  # fmt: skip
    (line,) = json.loads(report.read_text())["speculation"]
    assert line["tokens"] == sum(map(len, expected))
    assert line["measured_acceptance_rate"] == 1.0
