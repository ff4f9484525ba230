"""Responses of a server with OpenAI's API: a local one that calls the model's own `generate`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from build_runs import build, chat_tokenizer, make_folder, stored
from fake_openai import Answer, answer, serve
from lattice_bpd import openai_server
from target_models import build_target


class TinyServer:
    """Answers by the own `generate` of a tiny model, but for the faults that a test plants.

    Attributes:
        url: its address.
        requests: path and body of each.
        faults: the next answers; "none" for a right one.
        dies_after: requests that it answers at all.
        change: of the texts.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.faults: list[Any] = []
        self.dies_after = 10**9
        self.change: Any = lambda text: text
        self.model, self.tokenizer = build_target("llama"), chat_tokenizer()
        self.lock = threading.Lock()

    def respond(self, path: str, body: dict[str, Any]) -> Answer:
        with self.lock:
            self.requests.append((path, body))
            fault: Any = self.faults.pop(0) if self.faults else "none"
            if len(self.requests) > self.dies_after:
                fault = 0, ""
            planted: Answer = self._answer(body) if fault == "none" else fault
            return planted

    def _answer(self, body: dict[str, Any]) -> Answer:
        assert body["temperature"] == 0
        ids = self.tokenizer(body["prompt"], return_tensors="pt")["input_ids"]
        output: Any = self.model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=1,
            max_new_tokens=body["max_tokens"],
        )  # fmt: skip
        new = output[0, ids.shape[1] :].tolist()
        finish = "stop" if new[-1] == 1 else "length"
        text = self.change(self.tokenizer.decode([one for one in new if one != 1]))
        return answer([text], None, chat=False, finish=finish)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TinyServer]:
    monkeypatch.setattr(openai_server, "_PAUSES", (0.01, 0.01, 0.01))
    tiny = TinyServer()
    with serve(tiny.respond) as tiny.url:
        yield tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.mark.parametrize("chat", [True, False])
def test_responses_are_those_of_the_model(chat: bool, folder: Path, server: TinyServer) -> None:
    options = [] if chat else ["--no-chat"]
    assert build(folder, *options, out="here") == 0
    assert build(folder, "--server", server.url, *options, out="there") == 0
    assert sorted(stored(folder, "there")) == sorted(stored(folder, "here"))
    assert {path for path, _ in server.requests} == {"/v1/completions"}
    assert {body["model"] for _, body in server.requests} == {"fake"}
    count = len(server.requests)
    assert build(folder, "--server", server.url, *options, out="there") == 0  # all of it is known
    assert len(server.requests) == count


def test_a_server_that_dies_loses_nothing(
    folder: Path, server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.dies_after = 17
    assert build(folder, "--server", server.url, "--batch-size", "4") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no answer" in line
    assert len(stored(folder, "out")) == 17
    server.dies_after = 10**9
    before = len(server.requests)
    assert build(folder, "--server", server.url) == 0
    assert len(server.requests) == before + 13
    assert len(stored(folder, "out")) == 30


def test_texts_that_the_tokenizer_changes_are_left_out(
    folder: Path, server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.change = lambda text: text.replace("w2", "  w2")
    changed = 0
    for line in (build(folder, out="here"), *stored(folder, "here"))[1:]:
        changed += "w2" in server.tokenizer.decode(json.loads(line)["response"])
    assert 0 < changed < 30
    assert build(folder, "--server", server.url) == 0
    assert f"{changed} prompts are left out: {changed} other text" in capsys.readouterr().out
    assert len(stored(folder, "out")) == 30 - changed
    server.change = lambda text: text + " \ufffd."
    assert build(folder, "--server", server.url, out="other") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no response of the server can be used: 30 other text" in line


def test_another_model_is_noticed(
    folder: Path, server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(folder, "--server", server.url) == 0
    assert "100% of their tokens are the model's own greedy ones." in capsys.readouterr().out
    server.model = build_target("gpt_neox")
    assert build(folder, "--server", server.url, out="other") == 0
    assert "own greedy ones; greedy responses of this model" in capsys.readouterr().out


def test_a_prompt_that_the_server_refuses_is_left_out(folder: Path, server: TinyServer) -> None:
    server.faults = ["none", (400, "too long"), "none"]
    assert build(folder, "--server", server.url, "--batch-size", "1") == 0
    assert len(stored(folder, "out")) == 29
