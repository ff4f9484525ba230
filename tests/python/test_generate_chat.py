"""`lattice-bpd generate`: chats, rates beside those of the model's own `generate`, colors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from build_runs import chat_tokenizer
from lattice_bpd.cli import main
from planted_drafts import plain_continuation
from target_models import build_target

PROMPT = [2, 4, 33, 3]  # <user> Hi w33 <assistant>


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model, and as `drafter` of its drafter."""
    folder = tmp_path_factory.mktemp("chat")
    build_target("llama").save_pretrained(folder)
    chat_tokenizer().save_pretrained(folder)
    (folder / "prompts.json").write_text(json.dumps([f"Hi w{n}" for n in range(20, 50)]))
    arguments = ["--max-new-tokens", "40", "--epochs", "1", "--keep-heads"]
    assert main(["build", str(folder), "--prompts", str(folder / "prompts.json"), "-o",
                 str(folder / "drafter"), *arguments]) == 0  # fmt: skip
    return folder


def expected(count: int) -> list[int]:
    """By the model's own `generate`."""
    return plain_continuation(build_target("llama"), PROMPT, max_new_tokens=count, eos_token_id=1)


def decode(ids: list[int]) -> str:
    """Without special tokens."""
    return str(chat_tokenizer().decode(ids, skip_special_tokens=True))


def run(folder: Path, *options: str) -> int:
    return main(["generate", str(folder), "--drafter", str(folder / "drafter"), *options])


@pytest.mark.parametrize("options", [["--chat", "Hi w33"], ["--prompt", "Hi w33", "--chat"]])
def test_the_chat_template_is_applied(
    options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *options, "--json", "--max-new-tokens", "50", "--compare") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["token_ids"] == expected(50)
    assert result["tokens_per_second"] == pytest.approx(50 / result["seconds"]["total"])
    assert result["plain_tokens_per_second"] > 0
    assert run(folder, *options) == 0
    out = capsys.readouterr().out
    found = re.search(r"\n---\n(\d+) tokens in .* tokens/s; ended by positions", out)
    assert found is not None
    count = int(found[1])
    assert count > 64
    assert out[: found.start()] == decode(expected(count))  # no prompt, no colors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "found no prompt; expected one of --prompt TEXT, --prompt-file FILE and --chat TEXT"),
        (["--chat"], "found no prompt"),
        (["--chat", "Hi", "--prompt", "Hi"], "found two prompts"),
        (["--chat", "Hi", "--compare", "--accept", "top_k:2"], "--compare: with --accept"),
        (["--chat", "Hi", "--max-new-tokens", "0"], "--max-new-tokens is"),
    ],
)
def test_errors(
    options: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
