"""`certify --server`: equal texts, near-ties, planted errors, servers without log probabilities."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_openai import Answer as Response
from fake_openai import answer, serve
from lattice_bpd.cli import main
from lattice_bpd.openai_server import OpenAIServer, ServerError
from lattice_bpd_conformance.servers import Answer, Answers, ask_server, compare_answers

WORDS = [f" w{n}" for n in range(12)] + [" w", " w1x"]  # some begin others
PROMPTS = [f"prompt {n}" for n in range(12)]
LENGTH = 24


class Fake:
    """A server of a random model: each text has logits of its own.

    Args:
        noise: standard deviation that each call adds to the logits.
        plant: (prompt, position): a token there that the model prefers by a margin above 2.
        end: (prompt, position) where the answer ends.
        finish: at that end.
        logprobs: False: none; "refused": status 400 where a request asks for them.
        scale: of the logits.
    """

    def __init__(
        self, noise: float = 0.0, plant: tuple[int, int] | None = None,
        end: tuple[int, int] | None = None, finish: str = "stop", logprobs: Any = True,
        scale: float = 2.0,
    ) -> None:  # fmt: skip
        self.noise, self.plant, self.end, self.finish = noise, plant, end, finish
        self.logprobs, self.scale = logprobs, scale
        self.first: dict[str, list[str]] = {}  # tokens of the first whole answers
        self.calls, self.lock, self.seed = Counter[str](), threading.Lock(), 0

    def logits(self, prompt: str, tokens: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        seed = list("\0".join([prompt, *tokens]).encode())
        with self.lock:  # noise that does not depend on the order in which prompts are asked
            self.calls[prompt] += 1
            rng = np.random.default_rng([self.seed, PROMPTS.index(prompt), self.calls[prompt]])
        noise = self.noise * rng.normal(size=len(WORDS))
        return self.scale * np.random.default_rng(seed).normal(size=len(WORDS)) + noise

    def __call__(self, path: str, body: dict[str, Any]) -> Response:
        chat = "chat" in path
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        if body.get("logprobs") and self.logprobs == "refused":
            return 400, {"error": {"message": "logprobs are not supported"}}
        number = PROMPTS.index(prompt)
        tokens: list[str] = []
        top, finish = [], "length"
        for position in range(body["max_tokens"]):
            if (number, position) == self.end:
                finish = self.finish
                break
            logits = self.logits(prompt, tokens)
            log_probs = logits - math.log(np.exp(logits).sum())
            order = np.argsort(-logits)
            chosen = int(order[0])
            if (number, position) == self.plant:
                chosen = next(int(n) for n in order if logits[order[0]] - logits[n] > 2.0)
            listed = [*order[:5].tolist(), chosen]
            tokens.append(WORDS[chosen])
            top.append({WORDS[n]: float(log_probs[n]) for n in listed})
        if len(tokens) == LENGTH:
            self.first.setdefault(prompt, tokens)
        return answer(tokens, top if self.logprobs is True else None, chat=chat, finish=finish)


@pytest.fixture
def certify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in PROMPTS))

    def run(server: Fake, baseline: Fake | None, *options: str) -> tuple[int, Any, str]:
        output = tmp_path / "report.json"
        output.unlink(missing_ok=True)
        with ExitStack() as stack:
            arguments = ["--server", stack.enter_context(serve(server))]
            if baseline is not None:
                baseline.seed = 1
                arguments += ["--baseline", stack.enter_context(serve(baseline))]
            status = main(
                ["certify", *arguments, "--prompts", str(prompts), "--max-tokens", str(LENGTH),
                 "-o", str(output), *options]
            )  # fmt: skip
        printed = capsys.readouterr()
        content = json.loads(output.read_text()) if output.exists() else None
        return status, content, printed.out + printed.err

    return run


@pytest.mark.parametrize("options", [(), ("--no-chat",), ("--parallel", "1")])
def test_equal_servers(certify: Any, options: tuple[str, ...]) -> None:
    status, report, text = certify(Fake(), Fake(), *options)
    assert status == 0
    assert (report["answers"]["equal_texts"], report["answers"]["texts"]) == (12, 12)
    assert report["answers"]["equal_positions"] == report["answers"]["positions"] == 12 * LENGTH
    assert report["answers"]["noise"] == 0.0
    assert "server / baseline" in text
    assert "repeat themselves exactly" in text


@pytest.mark.parametrize("logprobs", [True, False, "refused"])
def test_rounding_is_a_near_tie(certify: Any, logprobs: Any) -> None:
    """Also where only the baseline returns log probabilities."""
    baseline = Fake(0.05)
    status, report, _ = certify(Fake(0.05, logprobs=logprobs), baseline)
    assert status == 0
    differences = report["answers"]["differences"]
    assert differences
    assert {one["kind"] for one in differences} == {"near-tie"}
    assert 0.05 < report["bound"] < 0.7
    assert report["itself"]["equal_texts"] < 12
    model = Fake()
    for one in differences:
        prompt = PROMPTS[one["prompt"]]
        before = baseline.first[prompt][: one["position"]]
        exact = dict(zip(WORDS, model.logits(prompt, before).tolist(), strict=True))
        assert baseline.first[prompt][one["position"]] == one["expected"]
        assert abs(exact[one["expected"]] - exact[one["token"]]) < 0.4


@pytest.mark.parametrize(("noise", "logprobs"), [(0.0, True), (0.05, True), (0.0, False)])
@pytest.mark.parametrize("plant", [(3, 0), (5, 11), (0, LENGTH - 1)])
def test_a_planted_error_is_seen(
    certify: Any, noise: float, logprobs: bool, plant: tuple[int, int]
) -> None:
    status, report, text = certify(Fake(noise, plant, logprobs=logprobs), Fake(noise))
    assert status == 2
    errors = [one for one in report["answers"]["differences"] if one["kind"] == "error"]
    assert [one["prompt"] for one in errors] == [plant[0]]
    assert errors[0]["position"] == plant[1]
    assert "1 of 12 texts have errors" in text
    if noise == 0.0:
        assert report["answers"]["equal_texts"] == 11


def test_a_baseline_without_log_probabilities(certify: Any) -> None:
    status, report, text = certify(Fake(plant=(3, 4)), Fake(logprobs=False))
    assert status == 0
    (one,) = report["answers"]["differences"]
    assert (one["prompt"], one["kind"], report["bound"]) == (3, "unknown", None)
    assert "no log probabilities, so no difference can be classed" in text


def test_answers_are_kept_as_a_baseline(certify: Any, tmp_path: Path) -> None:
    """One server after the other gives what two at a time give."""
    status, answers, text = certify(Fake(0.05), None)
    assert (status, len(answers["first"]), len(answers["again"])) == (0, 12, 12)
    assert "for --baseline" in text
    kept = tmp_path / "plain.json"
    kept.write_text(json.dumps(answers))
    assert certify(Fake(), None, "--baseline", str(kept))[0] == 0
    status, report, _ = certify(Fake(plant=(3, 4)), None, "--baseline", str(kept))
    assert status == 2
    assert 3 in [o["prompt"] for o in report["answers"]["differences"] if o["kind"] == "error"]
    status, _, text = certify(Fake(), None, "--baseline", str(kept), "--max-tokens", "9")
    assert (status, "expected the same --prompts" in text) == (2, True)
    kept.write_text('{"format": "other"}')
    status, _, text = certify(Fake(), None, "--baseline", str(kept))
    assert (status, "not a file of answers" in text) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a certificate FILE and --model, or --server"),
        (["a.json"], "expected --model"),
        (["a.json", "--model", "m", "--parallel", "3"], "--parallel is for --server"),
        (["--server", "http://x", "--prompts", "p"], "expected --baseline URL, or -o FILE"),
    ],
)
def test_arguments_are_checked(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--server", "http://127.0.0.1:9"), "is it running, and is this its address?"),
        (("--server", "localhost:8000"), "expected a server's address, such as http://"),
        (("--baseline", "http://127.0.0.1:9"), "is it running, and is this its address?"),
        (("--baseline", "localhost:8000"), "localhost:8000: no such file; expected answers"),
        (("-o", "none/report.json"), "cannot write into"),
    ],
)
def test_mistakes_are_refused_before_a_server_answers_all_prompts(
    certify: Any, options: tuple[str, ...], message: str
) -> None:
    server, baseline = Fake(), Fake()
    status, _, text = certify(server, baseline, *options)
    assert status == 2
    assert message in text
    assert server.calls.total() + baseline.calls.total() <= 2  # tokens


@pytest.mark.parametrize(
    ("tokens", "finish", "kind", "position"),
    [
        ((" b", " a", " a"), "length", "near-tie", 0),
        ((" b", " b", " a"), "length", "error", 1),  # by the server's own log probabilities
        ((), "length", "error", 0),  # three tokens were asked for
        ((), "stop", "unknown", 0),  # the end may be as good as " a"
        ((" a", " b", " a"), "length", "error", 1),
    ],
)
def test_each_kind(tokens: tuple[str, ...], finish: str, kind: str, position: int) -> None:
    tie, sure = {" a": -0.7, " b": -0.7, " c": -6.0}, {" a": -0.01, " b": -5.0}
    top = (tie, sure, sure)
    baseline = Answer(" a a a", "length", (" a",) * 3, top)
    server = Answer("".join(tokens), finish, tokens, top[: len(tokens)])
    report = compare_answers(
        Answers("a", "m", 3, ("p",), (server,)),
        Answers("b", "m", 3, ("p",), (baseline,), (baseline,)),
    )
    (one,) = report.answers.differences
    assert (one.kind, one.position) == (kind, position)


CHAT = [{"role": "user", "content": "Hi"}]
TOP = [{" a": -0.5, " b": -1.5}, {" c": -0.1, " d": -3.0}]


@pytest.mark.parametrize("prompt", ["Hi", CHAT])
def test_log_probabilities_are_asked_for_and_read(prompt: Any) -> None:
    asked: list[Any] = []

    def respond(path: str, body: dict[str, Any]) -> Response:
        asked.append(body)
        return answer([" a", " d"], TOP if body.get("logprobs") else None, chat="chat" in path)

    with serve(respond) as url:
        found = ask_server(OpenAIServer(url), prompt, 7, 5)
        assert found == Answer(" a d", "length", (" a", " d"), tuple(TOP))
        assert ask_server(OpenAIServer(url), prompt, 7, 0) == Answer(" a d", "length")
    assert asked[0]["logprobs"] == (5 if prompt == "Hi" else True)
    assert asked[0].get("top_logprobs") == (None if prompt == "Hi" else 5)
    assert "logprobs" not in asked[1]


@pytest.mark.parametrize("logprobs", [{"tokens": ["a"]}, {"content": [{}]}, ["a"]])
def test_malformed_log_probabilities(logprobs: Any) -> None:
    choice = {"text": "a", "logprobs": logprobs}
    with (
        serve(lambda *_: (200, {"choices": [choice]})) as url,
        pytest.raises(ServerError, match=r"log probabilities .*; expected those of the OpenAI API"),
    ):
        ask_server(OpenAIServer(url), "Hi", 1, 5)
