"""Compares the greedy answers of two servers: equal texts, near-ties, errors."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header
from lattice_bpd.openai_server import OpenAIServer, ServerError, ask_all
from lattice_bpd.token_ids import count_shared
from lattice_bpd.watcher import Watcher

Prompt = str | list[dict[str, Any]]

FORMAT, VERSION = "lattice-bpd answers", 1
_TOP = 5  # the most that all servers return
_OTHER_LOAD = 4  # requests at a time of the second answers, if the first came one by one
_NOISE_QUANTILE, _NOISE_FACTOR = 0.99, 2.5  # as of certificates
_LEAST_BOUND = 0.01  # nats; float32 rounds by less


@dataclass(frozen=True)
class Answer:
    """A server's answer to a prompt.

    Attributes:
        text: of the answer.
        finish: "stop", "length" or another reason of the server.
        tokens: texts of its tokens; None: the server returned no log probabilities.
        top: for each token the log probabilities of the best tokens by their texts, its own too.
    """

    text: str
    finish: str
    tokens: tuple[str, ...] | None = None
    top: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True)
class Answers:
    """A server's answers to prompts, twice.

    Attributes:
        server: its address.
        model: the name it serves.
        max_tokens: of an answer.
        prompts: texts or messages.
        first: an answer for each.
        again: a second answer for each, with another number of requests at a time; may be empty.
    """

    server: str
    model: str
    max_tokens: int
    prompts: tuple[Prompt, ...]
    first: tuple[Answer, ...]
    again: tuple[Answer, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for `read_answers`."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}


def read_answers(path: Path) -> Answers:
    """Answers that `certify --server` wrote without `--baseline`.

    Raises:
        OSError: the file cannot be read.
        FormatError: another file.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: no such file; expected answers that certify -o wrote, or a server's address, "
            "which begins with http:// or https://"
        )
    try:
        content = check_header(json.loads(path.read_text(encoding="utf-8")), FORMAT, VERSION)
        for name in ("first", "again"):
            content[name] = tuple(
                Answer(
                    one["text"], one["finish"],
                    None if one["tokens"] is None else tuple(one["tokens"]), tuple(one["top"]),
                )
                for one in content[name]
            )  # fmt: skip
        content["prompts"] = tuple(content["prompts"])
        return Answers(**content)
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{path}: not a file of answers ({error}); expected the address of a server, or what "
            "certify --server URL --prompts FILE -o FILE wrote"
        ) from error


def ask_server(server: OpenAIServer, prompt: Prompt, max_tokens: int, logprobs: int) -> Answer:
    """A server's greedy answer, with the log probabilities of so many best tokens; 0: none.

    Raises:
        ServerError: no answer, a refusal, or malformed log probabilities.
    """
    fields: dict[str, Any] = {}
    if logprobs and isinstance(prompt, str):
        fields = {"logprobs": logprobs}
    elif logprobs:
        fields = {"logprobs": True, "top_logprobs": logprobs}
    one = server.complete(prompt, max_tokens, fields=fields)
    try:
        return Answer(one.text, one.finish, *_read_logprobs(one.logprobs or {}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ServerError(
            f"{server.url}: answered the log probabilities {json.dumps(one.logprobs)[:120]}; "
            f"expected those of the OpenAI API ({type(error).__name__}: {error})"
        ) from error


def _read_logprobs(
    found: Mapping[str, Any],
) -> tuple[tuple[str, ...] | None, tuple[Mapping[str, float], ...]]:
    """Tokens, and the best ones of each position, of a chat's answer or of a text's."""
    if entries := found.get("content"):
        lists = [
            [(one["token"], one["logprob"]) for one in (entry, *(entry.get("top_logprobs") or ()))]
            for entry in entries
        ]
    elif tokens := found.get("tokens"):
        own = zip(tokens, found["token_logprobs"], strict=True)
        tops = found.get("top_logprobs") or [{}] * len(tokens)
        lists = [[pair, *(top or {}).items()] for pair, top in zip(own, tops, strict=True)]
    else:
        return None, ()
    return tuple(str(pairs[0][0]) for pairs in lists), tuple(map(_best, lists))


def _best(pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
    """The greatest value of each text; several tokens may be parts of a character."""
    best: dict[str, float] = {}
    for token, value in pairs:
        best[str(token)] = max(float(value), best.get(str(token), -math.inf))
    return best


def collect_answers(
    server: OpenAIServer,
    prompts: Sequence[Prompt],
    max_tokens: int,
    *,
    logprobs: int,
    parallel: int,
    twice: bool,
    watcher: Watcher | None = None,
) -> Answers:
    """A server's greedy answers, with log probabilities where it returns them.

    Args:
        server: to ask.
        prompts: texts or messages.
        max_tokens: of an answer.
        logprobs: of `find_logprobs`.
        parallel: requests at a time.
        twice: whether to ask again, with another number of requests at a time.
        watcher: receives progress: stages named by the server's address.

    Raises:
        ServerError: no answer, or a refusal.
    """
    watcher, model = watcher or Watcher(), server.model

    def ask(prompt: Prompt) -> Answer:
        return ask_server(server, prompt, max_tokens, logprobs)

    runs: list[tuple[Answer, ...]] = []
    for at_once in (parallel, 1 if parallel > 1 else _OTHER_LOAD)[: 1 + twice]:
        watcher.begin(f"{server.url}, {at_once} at a time", len(prompts))
        answers: dict[int, Answer] = {}
        for number, one in ask_all(ask, prompts, at_once):
            answers[number] = one
            watcher.advance()
        watcher.end()
        runs.append(tuple(answers[number] for number in range(len(prompts))))
    return Answers(server.url, model, max_tokens, tuple(prompts), *runs)


def find_logprobs(server: OpenAIServer, prompt: Prompt) -> int:
    """How many log probabilities to ask for: 0 where the server refuses requests with them.

    Raises:
        ServerError: no answer, or a refusal.
    """
    try:
        ask_server(server, prompt, 1, _TOP)
    except ServerError as error:
        if error.status < 400 or "logprobs" not in str(error):
            raise
        return 0
    return _TOP


@dataclass(frozen=True)
class Difference:
    """Where two answers to a prompt differ first.

    Attributes:
        prompt: its number, from 0.
        position: tokens that are equal; characters without log probabilities. Of an error after a
            near-tie: its own position.
        token: what was answered there; "": the end.
        expected: what the baseline has there, or after a near-tie the server's own best token.
        margin: nats by which that is preferred; None: unknown.
        is_exact: whether this is the margin; False: it is at least that.
        kind: "near-tie", "error" or "unknown".
    """

    prompt: int
    position: int
    token: str
    expected: str
    margin: float | None
    is_exact: bool
    kind: str = "unknown"


@dataclass(frozen=True)
class Agreement:
    """How far answers equal those of the baseline.

    Attributes:
        texts: all of them.
        equal_texts: equal ones.
        positions: tokens of the longer answer of each prompt; characters without tokens.
        equal_positions: of them those before the first difference.
        noise: 99 % quantile of the change of the margin between the best two tokens, in nats, at
            positions with the same text before; None: no log probabilities.
        differences: one of each text that differs.
    """

    texts: int
    equal_texts: int
    positions: int
    equal_positions: int
    noise: float | None
    differences: tuple[Difference, ...]

    def count(self, kind: str) -> int:
        """Differences of a kind."""
        return Counter(one.kind for one in self.differences)[kind]


@dataclass(frozen=True)
class ServerReport:
    """Two servers compared.

    Attributes:
        server: of the answers, address and model.
        baseline: of those to compare with.
        bound: nats; a margin up to it is a near-tie. None: no log probabilities.
        answers: of the server against the baseline.
        itself: of the baseline's second answers against its first.
    """

    server: str
    baseline: str
    bound: float | None
    answers: Agreement
    itself: Agreement

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"format": "lattice-bpd servers", "version": 1, **asdict(self)}

    def describe(self) -> str:
        """Lines to print."""
        lines = [
            f"server    {self.server}",
            f"baseline  {self.baseline}",
            "",
            f"{'':22}{'equal texts':>14}{'positions':>11}{'near-ties':>11}{'errors':>8}"
            f"{'unknown':>9}{'noise':>8}",
        ]
        for name, one in (("server / baseline", self.answers), ("baseline / itself", self.itself)):
            share = one.equal_positions / max(one.positions, 1)
            noise = "-" if one.noise is None else f"{one.noise:.3f}"
            lines.append(
                f"{name:22}{f'{one.equal_texts} of {one.texts}':>14}{share:>11.1%}"
                f"{one.count('near-tie'):>11}{one.count('error'):>8}{one.count('unknown'):>9}"
                f"{noise:>8}"
            )
        lines += ["", self._describe_bound()]
        lines += map(_describe_difference, self.answers.differences)
        return "\n".join(lines)

    def _describe_bound(self) -> str:
        if self.bound is None:
            return (
                "The baseline returned no log probabilities, so no difference can be classed; "
                "expected a server that returns `logprobs`."
            )
        text = (
            f"A difference is a near-tie if the baseline prefers its token by {self.bound:.3f} "
            "nats or less: rounding, by the baseline's own noise between two numbers of requests "
            "at a time."
        )
        if not self.itself.noise:
            text += (
                "\nThe baseline's calls repeat themselves exactly, which says nothing about calls "
                "of other shapes: small margins may be rounding too."
            )
        if (self.answers.noise or 0.0) > self.bound:
            text += (
                f"\nWarning: margins differ by {self.answers.noise:.3f} between the servers where "
                "the texts are still equal, more than rounding explains: another model, "
                "quantization or dtype?"
            )
        return text


def _describe_difference(one: Difference) -> str:
    least = "" if one.is_exact else "at least "
    margin = "" if one.margin is None else f", margin {least}{one.margin:.3f}"
    token = repr(one.token) if one.token else "the end"
    expected = repr(one.expected) if one.expected else "the end"
    return (
        f"prompt {one.prompt + 1}, position {one.position}: {token} instead of {expected}{margin}: "
        f"{one.kind}"
    )


def check_baseline(baseline: Answers, prompts: Sequence[Prompt], max_tokens: int) -> None:
    """Raise ValueError unless answers are to these prompts, of such lengths, and twice."""
    if (tuple(prompts), max_tokens) != (baseline.prompts, baseline.max_tokens):
        raise ValueError(
            f"the answers of {baseline.server} are to {len(baseline.prompts)} other prompts, or of "
            f"{baseline.max_tokens} instead of {max_tokens} tokens; expected the same "
            "--prompts, --max-tokens and --no-chat"
        )
    if len(baseline.again) != len(baseline.first):
        raise ValueError(f"{baseline.server}: no second answers; expected two to each prompt")


def compare_answers(server: Answers, baseline: Answers) -> ServerReport:
    """How far a server's answers are those of a baseline.

    Args:
        server: answers to the same prompts.
        baseline: with second answers.

    Raises:
        ValueError: other prompts or lengths, or no second answers.
    """
    check_baseline(baseline, server.prompts, server.max_tokens)
    noise = _noise(baseline.again, baseline.first)
    bound = None if noise is None else max(_NOISE_FACTOR * noise, _LEAST_BOUND)
    return ServerReport(
        f"{server.server} ({server.model})",
        f"{baseline.server} ({baseline.model})",
        bound,
        _agreement(server.first, baseline.first, bound, server.max_tokens),
        _agreement(baseline.again, baseline.first, bound, server.max_tokens),
    )


def _agreement(
    answers: Sequence[Answer], expected: Sequence[Answer], bound: float | None, limit: int
) -> Agreement:
    differences, positions, equal_positions = [], 0, 0
    for number, (one, other) in enumerate(zip(answers, expected, strict=True)):
        length = max(
            len(one.text if other.tokens is None else one.tokens or ()),
            len(other.text if other.tokens is None else other.tokens),
        )
        positions += length
        if one.text == other.text:
            equal_positions += length
            continue
        found = _difference(number, one, other)
        equal_positions += min(found.position, length)
        is_cut = one.finish == "length" and one.tokens is not None and len(one.tokens) < limit
        if is_cut and not found.token:
            found = replace(found, kind="error")
        elif bound is not None and found.margin is not None:
            if found.margin > bound:
                found = replace(found, kind="error")
            else:
                kind = "near-tie" if found.is_exact else "unknown"
                found = _own_error(one, found, bound) or replace(found, kind=kind)
        differences.append(found)
    return Agreement(
        len(answers), len(answers) - len(differences), positions, equal_positions,
        _noise(answers, expected), tuple(differences),
    )  # fmt: skip


def _difference(number: int, one: Answer, other: Answer) -> Difference:
    """The first difference, with its margin where log probabilities give one."""
    if other.tokens is None:
        position = count_shared(one.text, other.text)
        return Difference(
            number, position, one.text[position : position + 8],
            other.text[position : position + 8], None, is_exact=False,
        )  # fmt: skip
    if one.tokens is None:
        return _difference_of_text(number, one.text, other)
    position = count_shared(one.tokens, other.tokens)
    token = one.tokens[position] if position < len(one.tokens) else ""
    if position < len(other.tokens):
        margin, is_exact = _margin(other.top[position], token)
        return Difference(number, position, token, other.tokens[position], margin, is_exact)
    # The baseline's end is not among its tokens: the end is at best what the server has second.
    margin, _ = _margin(one.top[position], "") if token else (None, False)
    return Difference(number, position, token, "", margin, is_exact=False)


def _own_error(one: Answer, found: Difference, bound: float) -> Difference | None:
    """Where the server's own log probabilities refute an answer after a near-tie."""
    for position in range(found.position + 1, len(one.tokens or ())):
        top, token = one.top[position], (one.tokens or ())[position]
        margin, _ = _margin(top, token)
        if margin is not None and margin > bound:
            best = max(top, key=lambda name: top[name])
            return Difference(
                found.prompt, position, token, best, margin, is_exact=True, kind="error"
            )
    return None


def _difference_of_text(number: int, text: str, other: Answer) -> Difference:
    """The first difference of a text whose tokens are unknown: the likeliest token that fits it."""
    differs, start = count_shared(text, other.text), 0
    found: list[Difference] = []
    for position, expected in enumerate(other.tokens or ()):
        if start > differs:
            break
        top, following = other.top[position], text[start:]
        is_last = start + len(expected) > differs
        fitting = [
            token
            for token in top
            if token != expected
            and following.startswith(token or "\0")
            and (is_last or start + len(token) > differs)
        ]
        if fitting or (is_last and not found):  # else not listed, or the end
            token = max(fitting, key=len) if fitting else following[: len(expected)]
            margin, is_exact = _margin(top, token)
            found.append(Difference(number, position, token, expected, margin, is_exact))
        if not other.text.startswith(expected, start):
            break  # part of a character, or the end
        start += len(expected)
    if not found:
        return Difference(number, differs, text[differs:][:8], "", None, is_exact=False)
    return min(found, key=lambda one: math.inf if one.margin is None else one.margin)


def _margin(top: Mapping[str, float], token: str) -> tuple[float | None, bool]:
    """How much the best token is preferred to another one, and whether that is exact.

    Of a token that is not listed it is at least the margin of the last one that is; of an end,
    which may be listed by a name that is unknown, that of the second.
    """
    values = sorted(top.values(), reverse=True)
    if token in top:
        return values[0] - top[token], True
    if len(values) < 2:
        return None, False
    return values[0] - values[-1 if token else 1], False


def _noise(answers: Sequence[Answer], expected: Sequence[Answer]) -> float | None:
    """The 99 % quantile of changes of margins at positions with the same text before."""
    changes = [
        change
        for one, other in zip(answers, expected, strict=True)
        for change in _margin_changes(one, other)
    ]
    return float(np.quantile(changes, _NOISE_QUANTILE)) if changes else None


def _margin_changes(one: Answer, other: Answer) -> Iterator[float]:
    if one.tokens is None or other.tokens is None:
        return
    shared = count_shared(one.tokens, other.tokens) + 1
    for found, wanted in zip(one.top[:shared], other.top[:shared], strict=False):
        names = sorted(wanted, key=lambda name: -wanted[name])[:2]
        if len(names) == 2 and all(name in found for name in names):
            first, second = names
            change = (found[first] - found[second]) - (wanted[first] - wanted[second])
            if math.isfinite(change):
                yield abs(change)
