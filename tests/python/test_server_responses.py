"""Responses of a server with OpenAI's API: a local one that calls the model's own `generate`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_openai import Answer, answer, serve
from lattice_bpd import openai_server
from lattice_bpd.cli import main
from target_models import build_target
from test_responses import chat_tokenizer

NEW = 12


class TinyServer:
    """Answers by the own `generate` of a tiny model, but for the faults that a test plants.

    Attributes:
        url: its address.
        requests: path and body of each.
        faults: the next answers; "none" for a right one.
        dies_after: requests that it answers at all.
        missing: a path that it does not have.
        change: of the texts.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.faults: list[Any] = []
        self.dies_after = 10**9
        self.missing = ""
        self.change: Any = lambda text: text
        self.model, self.tokenizer = build_target("llama"), chat_tokenizer()
        self.lock = threading.Lock()

    def respond(self, path: str, body: dict[str, Any]) -> Answer:
        with self.lock:
            self.requests.append((path, body))
            fault: Any = self.faults.pop(0) if self.faults else "none"
            if len(self.requests) > self.dies_after:
                fault = 0, ""
            if path == self.missing:
                fault = 404, {"detail": "Not Found"}
            planted: Answer = self._answer(body) if fault == "none" else fault
            return planted

    def _answer(self, body: dict[str, Any]) -> Answer:
        prompt = body.get("prompt")
        if prompt is None:
            prompt = self.tokenizer.apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=True
            )
        assert body["temperature"] == 0
        ids = self.tokenizer(prompt, return_tensors="pt")["input_ids"]
        output: Any = self.model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=1,
            max_new_tokens=body["max_tokens"],
        )  # fmt: skip
        new = output[0, ids.shape[1] :].tolist()
        finish = "stop" if new[-1] == 1 else "length"
        text = self.change(self.tokenizer.decode([one for one in new if one != 1]))
        return answer([text], None, chat="messages" in body, finish=finish)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TinyServer]:
    monkeypatch.setattr(openai_server, "_PAUSES", (0.01, 0.01, 0.01))
    tiny = TinyServer()
    with serve(tiny.respond) as tiny.url:
        yield tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_target("llama").save_pretrained(tmp_path / "model")
    chat_tokenizer().save_pretrained(tmp_path / "model")
    records = [{"prompt": f"Hi w{number} w{number + 7}"} for number in range(10, 40)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, records)))
    return tmp_path


def build(folder: Path, out: str, *options: str) -> int:
    return main([
        "build", str(folder / "model"), "--prompts", str(folder / "prompts.jsonl"), "-o",
        str(folder / out), "--max-new-tokens", str(NEW), *options,
    ])  # fmt: skip


def stored(folder: Path, out: str) -> list[str]:
    return sorted((folder / out / "responses.jsonl").read_text().splitlines())


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("missing", ["", "/v1/chat/completions"])
def test_responses_are_those_of_the_model(
    chat: bool, missing: str, folder: Path, server: TinyServer
) -> None:
    server.missing = missing
    options = [] if chat else ["--no-chat"]
    assert build(folder, "here", *options) == 0
    assert build(folder, "there", "--server", server.url, *options) == 0
    assert stored(folder, "there") == stored(folder, "here")
    paths = {path for path, _ in server.requests}
    assert {"/v1/chat/completions" if chat else "/v1/completions"} <= paths
    assert ("/v1/completions" in paths) == (not chat or missing != "")
    assert {body["model"] for _, body in server.requests} == {"fake"}
    count = len(server.requests)
    assert build(folder, "there", "--server", server.url, *options) == 0  # all of it is known
    assert len(server.requests) == count


@pytest.mark.parametrize(
    "faults",
    [[(500, "oops")] * 2, [(503, {"error": "loading"}), (0, ""), (429, {})], [(0, "")] * 2],
)
def test_faults_that_pass(faults: list[Any], folder: Path, server: TinyServer) -> None:
    server.faults = list(faults)
    assert build(folder, "out", "--server", server.url + "/v1/", "--batch-size", "1") == 0
    assert len(stored(folder, "out")) == 30
    assert len(server.requests) == 30 + len(faults)


def test_a_server_that_dies_loses_nothing(
    folder: Path, server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.dies_after = 17
    assert build(folder, "out", "--server", server.url, "--batch-size", "4") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no answer" in line
    assert len(stored(folder, "out")) == 17
    server.dies_after = 10**9
    before = len(server.requests)
    assert build(folder, "out", "--server", server.url) == 0
    assert len(server.requests) == before + 13
    assert len(stored(folder, "out")) == 30


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((200, "<html>Welcome</html>"), "answered '<html>Welcome</html>'"),
        ((200, '{"choices": []}'), "expected a completion of the OpenAI API"),
        ((200, '{"choices": [{"text": null}]}'), "expected a completion of the OpenAI API"),
        ((401, '{"error": {"message": "no key"}}'), "no key; set OPENAI_API_KEY"),
        ((404, '{"error": {"message": "no model tiny"}}'), "no model tiny; is model 'fake'"),
        ((400, '{"message": "no template"}'), "no template"),
    ],
)
def test_servers_that_cannot_be_used(
    fault: Any, message: str, folder: Path, server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults = [fault] * 1000
    assert build(folder, "out", "--server", server.url) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_no_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(lambda *_: (200, {})) as url:
        pass
    assert build(folder, "out", "--server", url) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no answer" in line
    assert build(folder, "out", "--server", "ftp://x") == 2


def test_texts_that_the_tokenizer_changes_are_left_out(
    folder: Path, server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.change = lambda text: text.replace("w2", "  w2")
    changed = 0
    for line in (build(folder, "here"), *stored(folder, "here"))[1:]:
        changed += "w2" in server.tokenizer.decode(json.loads(line)["response"])
    assert 0 < changed < 30
    assert build(folder, "out", "--server", server.url) == 0
    assert f"{changed} prompts are left out: {changed} other text" in capsys.readouterr().out
    assert len(stored(folder, "out")) == 30 - changed
    server.change = lambda text: text + " \ufffd."
    assert build(folder, "other", "--server", server.url) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no response of the server can be used: 30 other text" in line


def test_reasoning_that_is_apart(folder: Path, server: TinyServer) -> None:
    apart = {"message": {"content": "w9", "reasoning_content": "w8"}, "finish_reason": "stop"}
    server.faults = [(200, {"choices": [apart]})]
    assert build(folder, "out", "--server", server.url, "--batch-size", "1") == 0
    assert build(folder, "here") == 0
    assert stored(folder, "out") == stored(folder, "here")


def test_another_model_is_noticed(
    folder: Path, server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(folder, "out", "--server", server.url) == 0
    assert "100% of their tokens are the model's own greedy ones." in capsys.readouterr().out
    server.model = build_target("gpt_neox")
    assert build(folder, "other", "--server", server.url) == 0
    assert "own greedy ones; greedy responses of this model" in capsys.readouterr().out


def test_a_prompt_that_the_server_refuses_is_left_out(folder: Path, server: TinyServer) -> None:
    server.faults = ["none", (400, "too long"), "none"]
    assert build(folder, "out", "--server", server.url, "--batch-size", "1") == 0
    assert len(stored(folder, "out")) == 29
