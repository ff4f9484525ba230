"""A client of servers with the OpenAI API, such as vLLM's and llama.cpp's."""

from __future__ import annotations

import http.client
import json
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_RETRIED = (408, 409, 429, 500, 502, 503, 504)  # statuses that may pass
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each retry
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


class ServerError(ConnectionError):
    """A server that does not answer, or answers with an error.

    Attributes:
        status: of HTTP; 0: no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Completion:
    """A server's answer.

    Attributes:
        text: of the answer.
        finish: "stop", "length" or another reason of the server.
        logprobs: as the server returned them, if `fields` of the request has them.
    """

    text: str
    finish: str
    logprobs: Any = None


class OpenAIServer:
    """A running server; threads may share it.

    Args:
        url: such as http://localhost:8000, with "/v1" or without. The environment variable
            OPENAI_API_KEY is sent as its key.
        model: the name it serves; None: the first one that it lists.
        timeout: seconds to wait for an answer.

    Raises:
        ValueError: not an address.
    """

    def __init__(self, url: str, model: str | None = None, timeout: float = 600.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url}: expected a server's address, such as http://localhost:8000")
        self.url, self._timeout = url.rstrip("/").removesuffix("/v1"), timeout
        self._model, self._has_answered = model, False

    @property
    def model(self) -> str:
        """The model's name.

        Raises:
            ServerError: the server lists none.
        """
        if self._model is None:
            models = self._send("/v1/models", None).get("data")
            names = [one.get("id") for one in models or () if isinstance(one, dict)]
            if not names or not isinstance(names[0], str):
                raise ServerError(f"{self.url}: lists no model; expected the name of one to ask")
            self._model = names[0]
        return self._model

    def complete(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        max_tokens: int,
        *,
        fields: Mapping[str, Any] | None = None,
    ) -> Completion:
        """The greedy answer to a prompt.

        Args:
            prompt: a text, or messages with "role" and "content", to which the server applies its
                chat template.
            max_tokens: the longest answer.
            fields: others of the request, such as the tools of a chat.

        Raises:
            ServerError: no answer after several tries, or a refusal.
        """
        body = {"model": self.model, "max_tokens": max_tokens, "temperature": 0, "stream": False}
        body |= fields or {}
        if isinstance(prompt, str):
            return self._read("/v1/completions", body | {"prompt": prompt})
        return self._read("/v1/chat/completions", body | {"messages": list(prompt)})

    def _read(self, path: str, body: dict[str, Any]) -> Completion:
        answer = self._send(path, body)
        try:
            choice = answer["choices"][0]
            message = choice["message"] if "messages" in body else {"content": choice["text"]}
            return Completion(
                str(message.get("content") or ""),
                str(choice.get("finish_reason")),
                choice.get("logprobs"),
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise ServerError(
                f"{self.url}{path}: answered {json.dumps(answer)[:120]}; expected a completion of "
                f"the OpenAI API ({type(error).__name__}: {error})"
            ) from error

    def _send(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """The JSON object of an answer; tried again unless a refusal or a wrong address."""
        for pause in (*_PAUSES, None):
            try:
                return self._send_once(path, body)
            except ServerError as error:
                is_final = error.status not in _RETRIED if error.status else not self._has_answered
                if pause is None or is_final:
                    raise
                time.sleep(pause)
        raise AssertionError("not reached")

    def _send_once(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        address = self.url + path
        try:
            request = urllib.request.Request(address, data, headers)
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            self._has_answered = True
            raise self._refusal(address, error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ServerError(
                f"{address}: no answer ({reason or type(error).__name__}); expected a server with "
                "the OpenAI API; is it running, and is this its address?"
            ) from None
        self._has_answered = True
        try:
            value = json.loads(content)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ServerError(
                f"{address}: answered {content[:60].decode(errors='replace')!r}; expected JSON of "
                "the OpenAI API: is this the address of such a server?", 200,
            )  # fmt: skip
        return value

    def _refusal(self, address: str, error: urllib.error.HTTPError) -> ServerError:
        try:
            text = error.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            text = ""
        try:
            value = json.loads(text)
            value = value.get("error", value.get("detail", value))
            text = str(value.get("message", value) if isinstance(value, dict) else value)
        except (ValueError, AttributeError):
            text = text[:200]
        hint = {
            401: "; set OPENAI_API_KEY to its key",
            403: "; set OPENAI_API_KEY to a key that may do this",
            404: f"; is model {self._model!r} what it serves, and is this its address?",
        }.get(error.code, "")
        return ServerError(f"{address}: status {error.code}: {text.strip()}{hint}", error.code)


def ask_all(
    ask: Callable[[_Request], _Answer], requests: Sequence[_Request], at_once: int
) -> Iterator[tuple[int, _Answer]]:
    """Answers with the numbers of their requests, in the order in which they come.

    After an error no further request is sent: the answers to those that were sent are yielded, then
    the first error is raised.

    Args:
        ask: sends a request and returns its answer; called by several threads.
        requests: what to ask. More may be appended while answers are read.
        at_once: most requests that wait for an answer at a time.
    """
    results: queue.SimpleQueue[tuple[int, _Answer] | Exception] = queue.SimpleQueue()

    def work(number: int) -> None:
        try:
            results.put((number, ask(requests[number])))
        except Exception as error:  # raised by the reader of `results`
            results.put(error)

    sent, active, failure = 0, 0, None
    while True:
        while failure is None and sent < len(requests) and active < at_once:
            # Daemons, so that an interrupted command does not wait for answers.
            threading.Thread(target=work, args=(sent,), daemon=True).start()
            sent, active = sent + 1, active + 1
        if not active:
            break
        result = results.get()
        active -= 1
        if isinstance(result, tuple):
            yield result
        else:
            failure = failure or result
    if failure is not None:
        raise failure
