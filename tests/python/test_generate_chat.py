"""`lattice-bpd generate`: chats, rates beside those of the model's own `generate`, colors."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from build_runs import chat_tokenizer
from lattice_bpd import decode as decode_package
from lattice_bpd.cli import main
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


def expected(prompt: list[int], count: int) -> list[int]:
    """By the model's own `generate`."""
    ids, model = torch.tensor([prompt]), build_target("llama")
    output: Any = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, eos_token_id=1,
        do_sample=False,
    )  # fmt: skip
    return list(output[0, len(prompt) :].tolist())


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
    assert result["token_ids"] == expected(PROMPT, 50)
    assert result["tokens_per_second"] == pytest.approx(50 / result["seconds"]["total"])
    assert result["plain_tokens_per_second"] > 0
    assert run(folder, *options) == 0
    out = capsys.readouterr().out
    found = re.search(r"\n---\n(\d+) tokens in .* tokens/s; ended by positions", out)
    assert found is not None
    count = int(found[1])
    assert count > 64
    assert out[: found.start()] == decode(expected(PROMPT, count))  # no prompt, no colors


def test_rates_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--prompt", "Hi w33", "--compare") == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(
        r"model.generate: [\d,]+ tokens/s, the same text; with drafts \d+\.\d\d times as fast", line
    )


def test_accepted_tokens_are_colored_on_a_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    results: list[Any] = []
    decode_chat = decode_package.generate
    monkeypatch.setattr(
        decode_package,
        "generate",
        lambda *a, **k: results.append(decode_chat(*a, **k)) or results[0],
    )
    assert run(folder, "--chat", "Hi w33", "--max-new-tokens", "60") == 0
    out = capsys.readouterr().out.split("\n---\n")[0]
    green = re.findall(r"\x1b\[32m(.*?)\x1b\[0m", out, re.DOTALL)
    bold = re.findall(r"\x1b\[1;33m(.*?)\x1b\[0m", out, re.DOTALL)
    words = expected(PROMPT, 60)
    accepted = results[0].stats.accept_lengths
    starts = itertools.accumulate([1, *(count + 1 for count in accepted)])
    own = [words[start - 1] for start in starts if start <= 60]
    assert " ".join(bold).split() == decode(own).split()
    assert len(" ".join(green).split()) == len(decode(words).split()) - len(decode(own).split())
    assert green
    plain = re.sub(r"\x1b\[[\d;]*m", "", out).replace("\n", " ")
    assert plain == decode(words)
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(folder, "--chat", "Hi w33") == 0
    assert "\x1b[3" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "found no prompt; expected one of --prompt TEXT, --prompt-file FILE and --chat TEXT"),
        (["--chat"], "found no prompt"),
        (["--chat", "Hi", "--prompt", "Hi"], "found two prompts"),
        (["--chat", "Hi", "--compare", "--accept", "top_k:2"], "--compare: with --accept"),
        (["--chat", "Hi", "--max-new-tokens", "0"], "max_new_tokens"),
    ],
)
def test_errors(
    options: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_model_without_a_template(folder: Path, capsys: pytest.CaptureFixture[str],
                                    tmp_path: Path) -> None:  # fmt: skip
    build_target("llama").save_pretrained(tmp_path)
    chat_tokenizer(None).save_pretrained(tmp_path)
    assert main(["generate", str(tmp_path), "--chat", "Hi"]) == 2
    assert "has no chat template; give the text as --prompt" in capsys.readouterr().err
