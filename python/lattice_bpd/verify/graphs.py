"""Calls of a fixed shape, recorded once and replayed: a GPU starts no kernels one by one.

In small models starting kernels takes longer than a call. A CUDA graph starts all of them at once,
with the same shapes and memory each time:

    shape     R rows of W tokens, both powers of two, over buffers of C positions
    inputs    lengths, token ids, positions and ancestors, in one copy
    padding   rows and tokens beyond the trees write to the last position, which no text reads
    outputs   logits and hidden states; in one copy, argmax and most probable tokens of each node
    greedy    the argmax is followed, accepted keys are moved down, and heads read the last state

So texts live in buffers that outlast them, lent to one batch at a time; others decode without.
`record_calls` turns this off. Models whose forward needs values on the host, such as mixtures of
experts that count tokens, are not recorded: `find_record_refusal` tells why. A recording is used
once its first replay, of other inputs than it was made with, gives the logits of a plain call.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lattice_bpd import _core
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.forward import LMOutput, has_own_call
from lattice_bpd.models.lm_call import unwrap_model
from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify.greedy import Predictions, follow_by_index
from lattice_bpd.verify.layout import mask_positions
from lattice_bpd.verify.memory import free_memory, is_lack_of_memory
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.rounding import logits_match
from lattice_bpd.verify.rows import Rows

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
CAPACITIES = (1024, 4096, 16_384)
_MOST_ROWS = 64
_SHARE = 0.3  # of a GPU's free memory that lent buffers may take
_COMPARED = 16  # nodes of the first tree, and the last one of each
_LOGGER = logging.getLogger("lattice_bpd")
_WANTED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_LOCK = threading.Lock()
Body = Callable[[], tuple[LMOutput, Tensor]]


def record_calls(model: Any, *, on: bool = True) -> None:
    """Whether calls of a model on an NVIDIA GPU are recorded and replayed while it decodes.

    They are unless this turns it off. Outputs stay the same up to the rounding of other kernels.
    Each new shape takes a moment, and buffers of 1,024, 4,096 or 16,384 positions stay allocated,
    at most 0.3 of the free memory.

    Args:
        model: a causal LM of `transformers`.
        on: False: no longer, and forget what was recorded.
    """
    base = unwrap_model(model)
    _WANTED[base] = on
    if not on:
        facts_of(base).pop("recorded", None)


def lend_rows(target: Any, rows: Rows, num_rows: int, positions: int) -> Rows:
    """The texts in buffers whose calls are replayed; the same rows where that is not possible.

    Args:
        target: a CausalLMTarget.
        rows: texts of equal or different lengths.
        num_rows: for so many texts, of which more may follow.
        positions: of the longest text, with its new tokens and drafts.
    """
    base = getattr(target, "base", None)
    if base is None or not is_recordable(target.device):
        return rows
    is_wanted = _WANTED.get(base, True)
    lent = _lend(target, base, rows, num_rows, positions) if is_wanted else rows
    target.is_recorded = lent.recorded is not None
    return lent


def _lend(target: Any, base: Any, rows: Rows, count: int, positions: int) -> Rows:
    facts = facts_of(base)
    refusal = find_record_refusal(target, rows)
    capacity = next((size for size in CAPACITIES if size > positions), None)
    if refusal is None and (capacity is None or count > _MOST_ROWS):
        refusal = f"{count} texts of {positions} positions are too many"
    if refusal is not None or capacity is None:
        if facts.get("recorded refusal") != refusal:
            _LOGGER.info("calls are not recorded: %s", refusal)
        facts["recorded refusal"] = refusal
        return rows
    with _LOCK:
        known = facts.setdefault("recorded", [])
        for one in known:
            if one.fits(rows, count, capacity) and one.is_free:
                lent: Rows = one.lend(rows)
                return lent
        needed = rows.position_bytes * capacity * _power(count)
        used = sum(one.num_bytes for one in known)
        most = _SHARE * (free_memory(target.device) + used)
        if used + needed > most:
            known[:] = [one for one in known if not one.is_free]
            if sum(one.num_bytes for one in known) + needed > most:
                return rows
        one = RecordedCalls(rows, _power(count), capacity)
        _LOGGER.info(
            "recorded calls: %d rows of %d positions, %.0f MB", *one.shape, one.num_bytes / 1e6
        )
        known.append(one)
        return one.lend(rows)


def find_record_refusal(target: Any, rows: Rows) -> str | None:
    """Why calls of a target cannot be recorded, as far as is known before it is tried; or None."""
    name, base = type(target.base).__name__, target.base
    devices = {part.device for part in rows.buffers} | {one.device for one in base.parameters()}
    if target.decoder_prompt is not None or target.is_recurrent:
        return f"{name} keeps more than keys and values"
    if len(devices) > 1:
        return f"{name} is on several devices"
    if base.config.get_text_config(decoder=True) is not base.config:
        return f"{name} reads more than text, and may keep positions of images outside its cache"
    if target.limits.capacity is not None or target.limits.varies_from is not None:
        return f"{name} counts the tokens of a call or a text on the host"
    if any(has_own_call(module) for module in base.modules()):
        return f"{name} has hooks, which do not run when a call is replayed"
    if any(getattr(one, "_compiled_call_impl", None) is not None for one in base.modules()):
        return f"parts of {name} are compiled"
    refusal: str | None = target.refuses_tree()
    return refusal or facts_of(base).get("record refusal")


class HeadsInCall(NamedTuple):
    """Draft heads that a recorded call of the target computes too.

    Attributes:
        read: the candidates after (N, D) hidden states and the (N,) int64 tokens selected from
            them; independent slots with log probabilities.
        tensors: that it reads, on the target's device.
    """

    read: Callable[[Tensor, Tensor], LatticeInput]
    tensors: list[Tensor]


class _Key(NamedTuple):
    """What recordings differ by.

    Attributes:
        num_rows: R.
        size: W.
        num_predictions: k; 0: none.
        layers: whose features are outputs.
        keeps: whether it follows the argmax and moves what it accepts.
        heads: addresses of the tensors of heads that it runs; (): none.
    """

    num_rows: int
    size: int
    num_predictions: int
    layers: tuple[int, ...]
    keeps: bool
    heads: tuple[int, ...]


class Replayed(NamedTuple):
    """What a replayed call returns.

    Attributes:
        output: logits (R, W, V), hidden (R, W, D) and features, until the next call.
        token_ids: R W ints, the argmax of each row of logits; -1: they hold NaN.
        predictions: of each tree; None: not requested.
        candidates: of heads: the last accepted node of each tree, and those after it; or nothing.
    """

    output: LMOutput
    token_ids: list[int]
    predictions: list[Predictions | None]
    candidates: list[tuple[int, LatticeInput]]


class RecordedCalls:
    """The calls of one model over buffers of one size.

    Args:
        rows: texts, whose layers are copied.
        num_rows: R of the buffers.
        capacity: C.
    """

    def __init__(self, rows: Rows, num_rows: int, capacity: int) -> None:
        self._buffers = rows.empty_like(num_rows, capacity)
        self._lent: Any = None
        self._calls: dict[_Key, _Shape | None] = {}
        self._pool: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and positions of the buffers."""
        return self._buffers.shape

    @property
    def num_bytes(self) -> int:
        """Memory of the buffers."""
        return sum(part.nbytes for part in self._buffers.buffers)

    @property
    def is_free(self) -> bool:
        """Whether no batch has the buffers."""
        return self._lent is None or self._lent() is None

    def fits(self, rows: Rows, count: int, capacity: int) -> bool:
        """Whether `count` texts like these can have the buffers."""
        pairs = zip(rows.buffers, self._buffers.buffers, strict=True)
        return self.shape == (_power(count), capacity) and all(
            one.dtype == other.dtype and one.device == other.device for one, other in pairs
        )

    def lend(self, rows: Rows) -> Rows:
        """Copy texts into the buffers."""
        count, longest = len(rows.lengths), max(rows.lengths)
        lent = self._buffers.part(0, self._buffers.shape[0], 0)
        for own, old in zip(lent.buffers, rows.buffers, strict=True):
            own[:, :count, :, :longest] = old[:, :count, :, :longest]
        lent.set_texts(rows.lengths)
        lent.recorded, self._lent = self, weakref.ref(lent)
        return lent

    def call(
        self, target: Any, state: Rows, trees: Sequence[PrefixTree], num_predictions: int,
        read: Callable[[], Tensor], *, keeps: bool, heads: HeadsInCall | None,
    ) -> Replayed | None:  # fmt: skip
        """Read the trees in one call; None: in none of these shapes.

        Args:
            target: a CausalLMTarget.
            state: the texts in these buffers.
            trees: of each.
            num_predictions: k.
            read: (B, T, V) logits of the same by a plain call.
            keeps: whether the argmax is followed and accepted keys take their positions.
            heads: to be read after the last accepted token, if it is.
        """
        own = self._buffers.buffers
        is_moved = any(
            part.data_ptr() != one.data_ptr() for part, one in zip(state.buffers, own, strict=True)
        )
        size = next((one for one in WIDTHS if one >= max(map(len, trees))), None)
        if is_moved or size is None or state.width + size >= self._buffers.shape[1]:
            return None
        heads = heads if keeps else None
        read_by = () if heads is None else tuple(one.data_ptr() for one in heads.tensors)
        top_k = min(num_predictions, target.vocab_size)
        key = _Key(_power(len(trees)), size, top_k, target.feature_layers, keeps, read_by)
        if key not in self._calls:
            # Others' heads may be gone; what they read is kept as long as a recording is.
            self._calls = {
                one: shape for one, shape in self._calls.items() if one.heads in ((), read_by)
            }
            shape = self._calls[key] = self._record(target, key, heads)
            if shape is not None:
                expected = read()
                replayed = shape.run(trees, state.lengths)
                if _match(target.base, trees, replayed.output.logits, expected):
                    return replayed
                self._calls[key] = None
                self._refuse(target, "gives other logits when it is replayed")
        shape = self._calls[key]
        return None if shape is None else shape.run(trees, state.lengths)

    def _refuse(self, target: Any, reason: str) -> None:
        refusal = f"{type(target.base).__name__} {reason}"
        facts_of(target.base)["record refusal"] = refusal
        _LOGGER.info("calls are not recorded: %s", refusal)

    def _record(self, target: Any, key: _Key, heads: HeadsInCall | None) -> _Shape | None:
        numbers = key.num_rows * key.size * target.vocab_size  # of logits, also kept in float32
        too_large = numbers * (target.dtype.itemsize + 4) > _SHARE * free_memory(target.device)
        if too_large or "record refusal" in facts_of(target.base):
            return None
        shape = _Shape(self._buffers, key, heads, target.device)
        try:
            shape.record(target, self)
        except Exception as error:
            if is_lack_of_memory(error):
                _LOGGER.info("a call is not recorded: memory is lacking")
            else:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                self._refuse(target, f"cannot be ({lines[0]})")
            return None
        return shape

    def new_recording(self, body: Body) -> Any:
        """Record what `body` runs on the device."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return CudaRecording(body, self._pool)


class _Shape:
    """A call of R rows of W tokens, with its inputs and outputs."""

    def __init__(
        self, buffers: Rows, key: _Key, heads: HeadsInCall | None, device: torch.device
    ) -> None:
        self._key, self._heads = key, heads
        self._tensors = [] if heads is None else [one.detach() for one in heads.tensors]  # kept
        num_rows, size = key.num_rows, key.size
        self._cache = buffers.part(0, num_rows, 0, is_fixed=True)
        self._capacity = buffers.shape[1]
        numbers = num_rows * (2 + 2 * size)
        self._inputs = torch.zeros(
            8 * numbers + num_rows * size * size, dtype=torch.uint8, device=device
        )
        self._host = torch.zeros_like(self._inputs, device="cpu", pin_memory=device.type == "cuda")
        self._recording: Any = None
        self._numbers = 8 * numbers
        self._fields_on_host = self._fields(self._host.numpy(), np.int64)

    def _fields(self, memory: Any, int64: Any) -> list[Any]:
        """Lengths and numbers of nodes (R,), ids and positions (R, W), who sees whom (R, W, W)."""
        rows, size = self._key.num_rows, self._key.size
        numbers = memory[: self._numbers].view(int64)
        flat = rows * size
        return [
            numbers[:rows], numbers[rows : 2 * rows],
            numbers[2 * rows : 2 * rows + flat].reshape(rows, size),
            numbers[2 * rows + flat :].reshape(rows, size),
            memory[self._numbers :].reshape(rows, size, size),
        ]  # fmt: skip

    def record(self, target: Any, owner: RecordedCalls) -> None:
        """Record the call."""
        fields = self._fields(self._inputs, torch.int64)
        cache, key, heads, capacity = self._cache, self._key, self._heads, self._capacity
        size, top_k = key.size, key.num_predictions

        def body() -> tuple[LMOutput, Tensor]:
            starts, counts, ids, positions, attends = fields
            steps = torch.arange(capacity, device=ids.device)
            new = starts[:, None] + steps[:size]
            new = torch.where(steps[:size] < counts[:, None], new, capacity - 1)
            row = torch.arange(len(starts), device=ids.device)
            rows = row[:, None]
            cache.call.set_index(rows, new)
            mask, windowed = mask_positions(
                target, starts[:, None], steps, new, attends == 0, positions
            )
            output = target(
                ids, cache, attention_mask=mask, windowed_mask=windowed, position_ids=positions
            )
            most, best = output.logits.max(dim=-1)
            best = torch.where(most.isnan(), -1, best)
            numbers, scores = [best], [most[:0].float()]
            if top_k:
                logits = output.logits.float()
                top, top_ids = logits.topk(top_k, dim=-1)
                log_probs = top - logits.logsumexp(dim=-1, keepdim=True)
                is_known = log_probs.isfinite().all(dim=-1, keepdim=True)
                scores.append(log_probs)
                numbers.append(torch.where(is_known, top_ids, -1))
            if key.keeps:
                last, nodes = follow_by_index(ids, best, attends, counts)
                cache.move_nodes(starts, nodes)
                numbers.append(last)
            if heads is not None:
                lattice = heads.read(output.hidden[row, last], best[row, last].clamp(min=0))
                numbers.append(lattice.token_ids)
                scores.append(lattice.scores)
                self._slots = tuple(lattice.token_ids.shape[1:])
            flat = [torch.cat([one.flatten() for one in each]) for each in (numbers, scores)]
            self._returned = 8 * len(flat[0])
            return output, torch.cat([one.view(torch.uint8) for one in flat])

        self._recording = owner.new_recording(body)

    def run(self, trees: Sequence[PrefixTree], lengths: Sequence[int]) -> Replayed:
        """Copy the inputs, replay the call, copy what decides on tokens."""
        self._host.zero_()
        starts, counts, ids, positions, attends = self._fields_on_host
        count, (num_rows, size, top_k, *_) = len(trees), self._key
        starts[:count], counts[:count] = lengths, [len(tree) for tree in trees]
        ids[:count], positions[:count] = _core.tree_inputs(trees, lengths, size)
        attends[:count] = _core.node_masks(trees, size)
        self._inputs.copy_(self._host, non_blocking=True)
        output, returned = self._recording.replay()
        memory = returned.cpu().numpy()
        numbers = memory[: self._returned].view(np.int64)
        scores = memory[self._returned :].view(np.float32)
        nodes = num_rows * size
        token_ids: list[int] = numbers[:nodes].tolist()
        predictions: list[Predictions | None] = [None] * count
        if top_k:
            shape, end = (num_rows, size, top_k), nodes * top_k
            log_probs = scores[:end].reshape(shape)
            top_ids = numbers[nodes : nodes + end].astype(np.int32).reshape(shape)
            predictions = [
                Predictions(tree, top_ids[row, : len(tree)], log_probs[row, : len(tree)])
                for row, tree in enumerate(trees)
            ]
        return Replayed(output, token_ids, predictions, self._candidates(numbers, scores, count))

    def _candidates(
        self, numbers: npt.NDArray[np.int64], scores: npt.NDArray[np.float32], count: int
    ) -> list[tuple[int, LatticeInput]]:
        """See `Replayed`; they are the last numbers of the outputs."""
        if self._heads is None:
            return []
        num_rows, total = self._key.num_rows, self._key.num_rows * math.prod(self._slots)
        last: list[int] = numbers[-total - num_rows : -total].tolist()
        ids, log_probs = (
            part[-total:].reshape(num_rows, 1, *self._slots) for part in (numbers, scores)
        )
        return [
            (last[row], LatticeInput(ids[row], log_probs[row], are_log_probs=True))
            for row in range(count)
        ]


class CudaRecording:
    """What a function runs on a GPU, as a graph.

    Raises:
        RuntimeError: it waits for values of the device, or uses what cannot be recorded.
    """

    def __init__(self, body: Body, pool: Any) -> None:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        before = torch.cuda.get_sync_debug_mode()
        try:
            with torch.cuda.stream(side):
                body()  # initializes libraries, which may wait
                torch.cuda.set_sync_debug_mode("error")
                body()
        finally:
            torch.cuda.set_sync_debug_mode(before)
            current.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._output = body()

    def replay(self) -> Any:
        """Run it again; the outputs are in the same memory each time."""
        self._graph.replay()
        return self._output


def _match(base: Any, trees: Sequence[PrefixTree], logits: Tensor, expected: Tensor) -> bool:
    """Whether logits of some of the trees' nodes are those expected, up to rounding.

    Instead of those in a wrong context, which are not known, the mean of a token's logits is what
    `logits_match` compares with. NaN is reported elsewhere.
    """
    nodes = [(0, node) for node in range(min(len(trees[0]), _COMPARED))]
    nodes += [(row, len(tree) - 1) for row, tree in enumerate(trees)]
    rows, columns = torch.tensor(nodes, device=logits.device).unbind(1)
    own, plain = (part[rows, columns].float() for part in (logits, expected))
    if bool(plain.isnan().any()):
        return True
    is_known = plain.isfinite()
    own, plain = (torch.where(is_known, part, 0.0) for part in (own, plain))
    return logits_match(base, own, plain, plain.mean(dim=-1, keepdim=True))


def is_recordable(device: torch.device) -> bool:
    """Whether calls on a device are recorded."""
    return device.type == "cuda"


def _power(count: int) -> int:
    """The power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
