"""Time of a target call by its number of draft tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from lattice_bpd.verify.graphs import lend_rows
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.recurrent_cache import RecurrentCache
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.verification import verify_trees

if TYPE_CHECKING:
    from lattice_bpd.decode.state.model import DraftingModel

_CONTEXT = 64  # tokens before the measured call
_FAR = 1 << 20  # more draft tokens than any call has


def interpolate_costs(costs: Mapping[int, float], sizes: Sequence[int]) -> npt.NDArray[np.float64]:
    """Expected time of calls, where no call takes longer than one with more draft tokens.

    Linear between known sizes; beyond the largest with the mean slope of the known range.

    Args:
        costs: time by draft tokens, one size or more.
        sizes: (n,) draft tokens of each call.

    Returns:
        (n,) float64, in the unit of `costs`.
    """
    known, times = zip(*sorted(costs.items()), strict=True)
    rising = np.minimum.accumulate(times[::-1])[::-1]
    slope = (rising[-1] - rising[0]) / max(1, known[-1] - known[0])
    far = rising[-1] + slope * (_FAR - known[-1])
    return np.asarray(np.interp(sizes, [*known, _FAR], [*rising, far]), np.float64)


def measure_costs(
    model: DraftingModel,
    sizes: Sequence[int],
    rounds: int,
    on_round: Callable[[], None] | None = None,
) -> dict[int, float]:
    """Time verifying calls of the target; sizes take turns, so that other load affects all alike.

    Args:
        model: the target; its heads are not called.
        sizes: draft tokens of a call.
        rounds: timed calls of each size, after one call to warm up.
        on_round: called after each round.

    Returns:
        Median milliseconds by draft tokens, made monotone as by `interpolate_costs`.
    """
    context = context_length(model)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    with torch.inference_mode():
        new_state, state = _state_maker(model, context, max(sizes) + 2), None
        for _ in range(rounds + 1):
            for size in sizes:
                draft = token_text(model.vocab_size, size)
                drafts = [draft] if model.target.is_recurrent else [[token] for token in draft]
                tree = PrefixTree.from_drafts(1, drafts if draft else [])
                state = None  # lends its buffers to the next one
                state = new_state(size + 2)
                start = now(model)
                verify_trees(model.target, state, [tree], layout="auto")
                times[size].append(1e3 * (now(model) - start))
            if on_round is not None:
                on_round()
    # The first call of a size may include compilation and allocation.
    medians = {size: float(np.median(of_size[1:] or of_size)) for size, of_size in times.items()}
    return dict(zip(sizes, interpolate_costs(medians, sizes).tolist(), strict=True))


def context_length(model: DraftingModel) -> int:
    """Tokens before a measured call: 64, or half of the model's positions."""
    return min(_CONTEXT, (model.max_positions or 2 * _CONTEXT) // 2)


def _state_maker(model: DraftingModel, context: int, most: int) -> Callable[[int], Any]:
    """Makes caches after some context, with room for so many more tokens, at most `most`."""
    target: Any = model.target
    if target.decoder_prompt is None:
        prompt = torch.tensor([token_text(model.vocab_size, context)], device=model.device)
        if target.is_recurrent:
            return lambda _: RecurrentCache(target.read_prompts(prompt)[1], context)
        _, cache = target.read_prompts(prompt)

        def make(size: int) -> Rows:
            rows = Rows.from_cache(cache, num_free=size)  # a copy
            return lend_rows(target, rows, 1, context + most)

        return make
    source = target.encode([token_text(target.source_vocab_size, context)])
    prompt = torch.tensor([target.decoder_prompt], device=model.device)
    return lambda _: target.read_prompts(prompt, source=source)[1]


def now(model: DraftingModel) -> float:
    """Seconds, once a GPU has done what it was given."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter()


def token_text(vocab_size: int, length: int) -> list[int]:
    """The token ids 0, 1, .., repeated from 0 at the end of the vocabulary."""
    return [token % vocab_size for token in range(length)]
