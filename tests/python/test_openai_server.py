"""The client of servers with the OpenAI API: requests, errors, retries."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fake_openai import Answer, answer, serve
from lattice_bpd import openai_server
from lattice_bpd.openai_server import Completion, OpenAIServer, ServerError, ask_all

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_server, "_PAUSES", (0.0, 0.0))


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("prompt", ["Hi", CHAT])
def test_requests_and_answers(prompt: Any, suffix: str) -> None:
    asked: list[Any] = []

    def respond(path: str, body: dict[str, Any]) -> Answer:
        asked.append((path, body))
        return answer([" a", " d"], None, chat="chat" in path)

    with serve(respond) as url:
        server = OpenAIServer(url + suffix)
        assert server.complete(prompt, 7, fields={"seed": 3}) == Completion(" a d", "length")
    common = {"model": "fake", "max_tokens": 7, "temperature": 0, "stream": False, "seed": 3}
    if prompt == "Hi":
        assert asked == [("/v1/completions", {**common, "prompt": "Hi"})]
    else:
        assert asked == [("/v1/chat/completions", {**common, "messages": CHAT})]


@pytest.mark.parametrize("failure", [(500, "oops"), (503, {"error": "busy"}), (429, ""), (0, "")])
def test_what_passes_is_tried_again(failure: Answer) -> None:
    answers = [failure, failure, answer(["x"], None, chat=False)]
    with serve(lambda *_: answers.pop(0)) as url:
        assert OpenAIServer(url).complete("Hi", 1).text == "x"


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((401, {"error": {"message": "no key"}}), "status 401: no key; set OPENAI_API_KEY"),
        ((404, {"message": "no such model"}), "404: no such model; is model 'fake'"),
        ((400, {"error": {"message": "too long"}}), "status 400: too long"),
        ((200, "<html>Welcome"), "answered '<html>Welcome'; expected JSON"),
        ((200, {"choices": []}), "expected a completion"),
        ((200, {"choices": [{"message": {"content": "a"}}]}), "a completion"),
        ((500, "down"), "status 500: down"),
    ],
)
def test_errors_say_what_to_do(refusal: Answer, message: str) -> None:
    with serve(lambda *_: refusal) as url, pytest.raises(ServerError, match=message):
        OpenAIServer(url).complete("Hi", 1)


def test_a_server_that_is_not_there() -> None:
    with serve(lambda *_: (200, {})) as url:
        pass
    with pytest.raises(ServerError, match=r"no answer .*refused.*is it running"):
        OpenAIServer(url).complete("Hi", 1)
    with pytest.raises(ValueError, match="expected a server's address"):
        OpenAIServer("localhost:8000")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("at_once", [1, 3, 50])
def test_many_requests_at_a_time(at_once: int, fails: bool) -> None:
    """As many as may wait are sent together; after an error none is sent and none is lost."""
    together = threading.Barrier(min(at_once, 12))
    answered: set[int] = set()

    def ask(request: int) -> str:
        if request < together.parties:
            together.wait(10)
        if fails and request == 2:
            raise ServerError("down", 500)
        if fails and at_once > 1:
            time.sleep(0.05)  # answered after the error
        answered.add(request)
        return f"answer {request}"

    answers: dict[int, str] = {}
    requests = ask_all(ask, list(range(12)), at_once)
    if fails:
        with pytest.raises(ServerError, match="down"):
            answers.update(requests)
        assert answers.keys() == answered >= {0, 1}
        assert at_once > 1 or answered == {0, 1}
    else:
        answers.update(requests)
        assert answered == set(range(12))
    assert answers == {number: f"answer {number}" for number in answered}
    growing = [0]
    for number, _ in ask_all(str, growing, at_once):
        growing += [number + 1] if number < 4 else []
    assert growing == list(range(5))


def test_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    sent: list[Any] = []
    original = openai_server.urllib.request.urlopen

    def note(request: Any, **options: Any) -> Any:
        sent.append(request.get_header("Authorization"))
        return original(request, **options)

    monkeypatch.setattr(openai_server.urllib.request, "urlopen", note)
    with serve(lambda *_: answer(["x"], None, chat=False)) as url:
        OpenAIServer(url).complete("Hi", 1)
    assert set(sent) == {"Bearer secret"}
