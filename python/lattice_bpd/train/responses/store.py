"""Responses on disk: an append-only file of JSON lines, reused by later runs."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from lattice_bpd._core import FormatError
from lattice_bpd.models.head_files import identify


class ResponseStore:
    """Responses of a target by their prompts, in a file that only grows.

    A line has "key", a hash of the target's weights, of the settings and of the prompt, "prompt"
    and "response", token ids, "ended", whether a stop token or the model's positions ended it, and
    "limit", the tokens that it might have had.
    A line that a crash cut is dropped, so a run that was interrupted loses nothing but the
    responses in progress.

    Args:
        path: the file, created if missing; its folder must exist.
        model: the target.
        settings: what else the responses depend on, such as the acceptance rule and stop tokens.

    Raises:
        OSError: the file cannot be read or written.
        FormatError: it holds something else.
    """

    def __init__(self, path: Path, model: nn.Module, settings: str = "") -> None:
        self.path = path
        self._salt = json.dumps([identify(model), settings])
        self._responses: dict[str, tuple[list[int], float]] = {}
        for line in _read_lines(path):
            self._responses[line["key"]] = line["response"], line["limit"]

    def get(self, prompt: Sequence[int], max_new_tokens: int) -> list[int] | None:
        """The response to a prompt, cut to `max_new_tokens`; None if it is not known that far."""
        response, limit = self._responses.get(_key(self._salt, prompt), ([], 0))
        return response[:max_new_tokens] if limit >= max_new_tokens else None

    def add(
        self, prompt: Sequence[int], response: Sequence[int], *, ended: bool, limit: int
    ) -> None:
        """Append a response.

        Args:
            prompt: token ids.
            response: token ids; those of a server's text may be fewer than it generated.
            ended: whether a longer limit would give the same.
            limit: most tokens that it might have had.

        Raises:
            OSError: it cannot be written; what was written before is kept.
        """
        key = _key(self._salt, prompt)
        line = {
            "key": key, "prompt": list(prompt), "response": list(response), "ended": ended,
            "limit": limit,
        }  # fmt: skip
        data = json.dumps(line).encode() + b"\n"
        with self.path.open("ab", buffering=0) as file:
            start = file.tell()
            try:
                if file.write(data) != len(data):
                    raise OSError(f"{self.path}: the disk is full; what was generated is kept")
            except OSError:
                os.truncate(self.path, start)
                raise
        self._responses[key] = list(response), math.inf if ended else limit


def _key(salt: str, prompt: Sequence[int]) -> str:
    text = f"{salt} {' '.join(map(str, prompt))}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file; one that was cut at its end is removed."""
    if not path.exists():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
    for number, text in enumerate(data[:end].splitlines(), 1):
        try:
            line = json.loads(text)
            if not all(isinstance(line[name], list) for name in ("prompt", "response")):
                raise TypeError("a prompt and a response of token ids")
            limit = math.inf if line["ended"] else int(line["limit"])
            yield {"key": str(line["key"]), "response": line["response"], "limit": limit}
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(
                f"{path}, line {number}: not a stored response ({error}); expected a file that "
                "this command wrote; move it away"
            ) from error
