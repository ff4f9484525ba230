"""The target's hidden states of responses, computed once and kept on disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.atomic_files import write_json
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.head_files import TargetSample
from lattice_bpd.train.distil import batch_by_length
from lattice_bpd.train.responses.collect import Exchange
from lattice_bpd.watcher import SilentWatcher, Watcher

_TOKENS = 4096  # tokens of a call, padding included
_SAVE_INTERVAL = 10.0  # seconds between notes of the progress


def read_states(
    model: PreTrainedModel,
    exchanges: Sequence[Exchange],
    path: Path,
    watcher: Watcher | None = None,
) -> Tensor:
    """The hidden states that predicted each token of the responses, in order.

    They are written to `path`, with the progress beside it in `path`.json: an interrupted run
    continues there, and a later one with the same target and responses reads them.

    Args:
        model: the target.
        exchanges: prompts and responses.
        path: of the states.
        watcher: receives progress: stage "states", a step for each response.

    Returns:
        (N, D) bfloat16, memory-mapped; N tokens in all responses together.

    Raises:
        OSError: the file cannot be written.
    """
    watcher = watcher or SilentWatcher()
    weight = model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    width = int(weight.shape[1])
    offsets = np.cumsum([0, *(len(one.response) for one in exchanges)])
    state = Path(f"{path}.json")
    key, done = _key(model, exchanges), 0
    if path.exists() and state.exists():
        known = json.loads(state.read_text(encoding="utf-8"))
        done = int(known["done"]) if known.get("key") == key else 0
    if not done:
        path.unlink(missing_ok=True)
    count = int(offsets[-1])
    _allocate(path, 2 * count * width)
    states = torch.from_file(str(path), shared=True, size=count * width, dtype=torch.bfloat16)
    states = states.view(count, width)
    lengths = [len(one.prompt) + len(one.response) for one in exchanges]
    batches = batch_by_length(lengths, _TOKENS)[done:]
    watcher.begin("states", sum(map(len, batches)))
    lm, saved = BlockwiseLM(model, num_heads=2), time.monotonic()
    with torch.inference_mode():
        for number, batch in enumerate(batches):
            for index, hidden in zip(batch, _read(lm, exchanges, batch), strict=True):
                states[offsets[index] : offsets[index + 1]] = hidden
                watcher.advance()
            if number == len(batches) - 1 or time.monotonic() - saved > _SAVE_INTERVAL:
                saved = time.monotonic()
                write_json(state, {"key": key, "done": done + number + 1})
    watcher.end()
    return states


def _allocate(path: Path, size: int) -> None:
    """Disk space for a file that is mapped: without it writing would end the process."""
    with path.open("ab") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                return  # a file system without it
            path.unlink()
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None


def _read(lm: BlockwiseLM, exchanges: Sequence[Exchange], batch: list[int]) -> list[Tensor]:
    """(R_i, D) states of the responses of a batch; texts are padded on the right."""
    texts = [[*exchanges[n].prompt, *exchanges[n].response[:-1]] for n in batch]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=lm.device)
    hidden = lm.hidden_states(ids)
    return [
        hidden[row, len(exchanges[n].prompt) - 1 : len(texts[row])] for row, n in enumerate(batch)
    ]


def _key(model: PreTrainedModel, exchanges: Sequence[Exchange]) -> str:
    sample = TargetSample.of(model)
    content = [None if sample is None else sample.to_json(), exchanges]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
