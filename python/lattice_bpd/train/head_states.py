"""The target's hidden states of responses, computed once and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.models.forward import call_forward
from lattice_bpd.models.head_files import identify
from lattice_bpd.models.hooks import device_of
from lattice_bpd.models.lm_call import build_inputs, inner_call_is_exact
from lattice_bpd.token_ids import Int64Array
from lattice_bpd.train.responses.collect import Exchange
from lattice_bpd.watcher import Watcher

_TOKENS = 4096  # tokens of a call, padding included


class KeptStates(NamedTuple):
    """The hidden states that predicted the tokens of responses.

    Attributes:
        rows: (N, D) bfloat16, memory-mapped.
        starts: (R,) int64, the row that predicted the first token of each response; those of its
            other tokens follow.
    """

    rows: Tensor
    starts: Int64Array

    def of(self, number: int, count: int) -> Tensor:
        """(count, D) the states of the first tokens of a response."""
        start = int(self.starts[number])
        return self.rows[start : start + count]


class StateFile:
    """Hidden states of a target's responses, in a file that only grows.

    Beside it, PATH.jsonl names the target and then each response with its number of rows, in order.
    What a crash cut is dropped, so an interrupted run loses nothing but the responses in progress.

    Args:
        path: the file, created if missing, begun anew for another target.
        model: the target.

    Raises:
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path, model: PreTrainedModel) -> None:
        self._path, self._index = path, Path(f"{path}.jsonl")
        self._model = model
        weight = model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
        self._width = int(weight.shape[1])
        target = json.dumps([self._width, identify(model)])
        self._starts: dict[str, int] = {}
        self._count = 0
        lines = self._index.read_text(encoding="utf-8").splitlines() if self._index.exists() else []
        kept = [target]
        size = path.stat().st_size // (2 * self._width) if path.exists() else 0
        for line in lines[1:] if lines[:1] == kept else []:
            try:
                key, rows = json.loads(line)
            except ValueError:
                break  # the last one, cut
            if self._count + rows > size:
                break
            self._starts[key] = self._count
            self._count += rows
            kept.append(line)
        self._index.write_text("\n".join([*kept, ""]), encoding="utf-8")
        path.touch()
        os.truncate(path, 2 * self._width * self._count)

    def add(self, prompt: Sequence[int], response: Sequence[int], states: Tensor) -> None:
        """Append the states (T, D) that predicted the T tokens of a response.

        Raises:
            OSError: they cannot be written; what was written before is kept.
        """
        key = _key(prompt, response)
        if key in self._starts:
            return
        content = states.to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy()
        line = json.dumps([key, len(states)]) + "\n"
        for path, data in ((self._path, content.tobytes()), (self._index, line.encode())):
            try:
                with path.open("ab") as file:
                    file.write(data)
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
        self._starts[key] = self._count
        self._count += len(states)

    def read(self, exchanges: Sequence[Exchange], watcher: Watcher | None = None) -> KeptStates:
        """The states of responses; those that the file lacks are computed.

        Args:
            exchanges: prompts and responses.
            watcher: receives progress: stage "states", a step for each response that is read.

        Raises:
            OSError: see `add`.
        """
        watcher = watcher or Watcher()
        keys = [_key(one.prompt, one.response) for one in exchanges]
        missing = [one for one, key in zip(exchanges, keys, strict=True) if key not in self._starts]
        watcher.begin("states", len(missing))
        lengths = [len(one.prompt) + len(one.response) for one in missing]
        total, done = sum(lengths), 0
        for batch in batch_by_length(lengths, _TOKENS):
            texts = [missing[number] for number in batch]
            done += sum(lengths[number] for number in batch)
            for one, states in zip(texts, _read(self._model, texts), strict=True):
                self.add(one.prompt, one.response, states)
                watcher.advance(share=done / total)  # the longest are read first
        watcher.end()
        size = self._count * self._width
        rows = torch.from_file(str(self._path), shared=True, size=size, dtype=torch.bfloat16)
        starts = np.array([self._starts[key] for key in keys], np.int64)
        return KeptStates(rows.view(self._count, self._width), starts)


def batch_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of texts of similar length, the longest first; padding counts as tokens."""
    batches: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > max_tokens:
            batches.append([])
        batches[-1].append(number)
    return batches


def read_hidden(model: PreTrainedModel, input_ids: Tensor) -> Tensor:
    """The states of whole texts from which heads predict, and on which they are trained.

    Args:
        model: a decoder-only causal LM with an output embedding.
        input_ids: (B, T) int64. Ids are not checked, since that would synchronize a GPU.

    Returns:
        (B, T, D) float, what enters the output embedding; see `lattice_bpd.models.forward`.
    """
    embedding = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    inputs = build_inputs(model, input_ids, use_cache=False)
    if inner_call_is_exact(model, embedding):
        hidden: Tensor = model.base_model(**inputs).last_hidden_state
        return hidden
    return call_forward(model, embedding, inputs).hidden


@torch.inference_mode()
def _read(model: PreTrainedModel, exchanges: Sequence[Exchange]) -> list[Tensor]:
    """(T_i, D) states of the responses of a batch; texts are padded on the right."""
    texts = [[*one.prompt, *one.response[:-1]] for one in exchanges]
    longest = max(map(len, texts))
    rows = [text + [0] * (longest - len(text)) for text in texts]
    hidden = read_hidden(model, torch.tensor(rows, device=device_of(model)))
    return [hidden[row, len(one.prompt) - 1 : len(texts[row])] for row, one in enumerate(exchanges)]


def _key(prompt: Sequence[int], response: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps([list(prompt), list(response)]).encode()).hexdigest()[:32]
