"""A server of the OpenAI API in a thread, whose answers a function gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]  # status, and JSON or text
Respond = Callable[[str, dict[str, Any]], Answer]


@contextmanager
def serve(respond: Respond) -> Iterator[str]:
    """The address of a running server; `respond` gets the path and the body of each POST.

    Its model is "fake". An answer of status 0 closes the connection without one.
    """

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, status: int, value: Any) -> None:
            if status == 0:
                self.close_connection = True
                return
            is_text = isinstance(value, str)
            content = (value if is_text else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if is_text else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": "fake"}]})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._answer(*respond(self.path, json.loads(self.rfile.read(length))))

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(
    tokens: list[str], top: list[dict[str, float]] | None, *, chat: bool, finish: str = "length"
) -> Answer:
    """A completion; `top` has the log probabilities of the best tokens at each position."""
    text = "".join(tokens)
    logprobs: Any = None
    if top is not None and chat:
        logprobs = {
            "content": [
                {
                    "token": token,
                    "logprob": best[token],
                    "top_logprobs": [{"token": name, "logprob": best[name]} for name in best],
                }
                for token, best in zip(tokens, top, strict=True)
            ]
        }
    elif top is not None:
        logprobs = {
            "tokens": tokens,
            "token_logprobs": [best[token] for token, best in zip(tokens, top, strict=True)],
            "top_logprobs": top,
        }
    choice: dict[str, Any] = {"finish_reason": finish, "logprobs": logprobs}
    if chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    return 200, {"choices": [choice]}
