"""A tiny model with a chat template and prompts in a folder, and `lattice-bpd build` of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lattice_bpd.cli import main
from target_models import VOCAB, build_target

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
HEADS = ("--keep-heads", "--epochs", "1")


def chat_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A tokenizer of words, whose end of text is token 1."""
    words = ["<unk>", "<|end|>", "<user>", "<assistant>", "Hi", "Who?", "Be", "brief.", "Hello"]
    words += [f"w{number}" for number in range(len(words), VOCAB)]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<|end|>"
    )
    fast.chat_template = template
    return fast


def write_prompts(folder: Path, prompts: Sequence[str]) -> None:
    (folder / "prompts.json").write_text(json.dumps(prompts))


def make_folder(folder: Path, kind: str = "llama", count: int = 30) -> Path:
    """`folder` with model/ and prompts.json."""
    build_target(kind).save_pretrained(folder / "model")
    chat_tokenizer().save_pretrained(folder / "model")
    write_prompts(folder, [f"Hi w{number} w{number + 7}" for number in range(10, 10 + count)])
    return folder


def build(folder: Path, *options: str, out: str = "out", prompts: bool = True) -> int:
    """The status of the command."""
    files = ["--prompts", str(folder / "prompts.json")] if prompts else []
    return main([
        "build", str(folder / "model"), *files, "-o", str(folder / out), "--max-new-tokens", "12",
        *options,
    ])  # fmt: skip


def stored(folder: Path, out: str = "out") -> list[str]:
    """The lines of the responses."""
    return (folder / out / "build_files" / "responses.jsonl").read_text().splitlines()
