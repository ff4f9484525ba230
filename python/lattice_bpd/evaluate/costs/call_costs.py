"""What a call of the target costs by its draft tokens: from a file, or measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lattice_bpd._core import FormatError
from lattice_bpd.evaluate.costs.cost_curve import CostCurve
from lattice_bpd.verify.batch_cache import BatchCache
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.stacked_cache import StackedCache
from lattice_bpd.verify.verification import verify_trees

if TYPE_CHECKING:
    from lattice_bpd.decode.state.model import DraftingModel

SIZES = (0, 1, 4, 8, 12, 18, 24, 36, 54, 72, 108, 144)
ROUNDS = 15
_CONTEXT = 64  # tokens before the measured call


def read_costs(path: str | Path) -> dict[int, float]:
    """A cost curve from JSON.

    Args:
        path: a file with one object, draft tokens -> milliseconds: {"0": 1.9, "36": 2.4}.

    Returns:
        Milliseconds by draft tokens.

    Raises:
        OSError: it cannot be read.
        FormatError: something else, or fewer than two sizes.
    """
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        found = {int(size): float(cost) for size, cost in value.items()}
        for size, cost in found.items():
            if size < 0 or not 0.0 < cost < math.inf:
                raise ValueError(f"{size} draft tokens in {cost} ms")
        if len(found) < 2:
            raise ValueError(f"{len(found)} sizes; expected two or more")
    except (ValueError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path}: not a cost curve ({error}); expected draft tokens and milliseconds above 0, "
            'such as {"0": 1.9, "36": 2.4}'
        ) from error
    return dict(sorted(found.items()))


def make_curve(costs: dict[int, float]) -> CostCurve:
    """The curve through milliseconds by draft tokens."""
    curve = CostCurve()
    for size, cost in costs.items():
        curve.add(size, cost / 1e3)
    return curve


def measure_costs(
    model: DraftingModel,
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    on_round: Callable[[], None] | None = None,
) -> dict[int, float]:
    """Time verifying calls of the target; sizes take turns, so that a busy machine is for all.

    Args:
        model: target and heads.
        sizes: draft tokens of a call.
        rounds: calls of each size; their median counts, the first one warms up.
        on_round: called after each round.

    Returns:
        Milliseconds by draft tokens.
    """
    context = min(_CONTEXT, (model.max_positions or 2 * _CONTEXT) // 2)
    curve = CostCurve()
    with torch.inference_mode():
        prompt = torch.arange(context, device=model.device)[None] % model.vocab_size
        _, cache = model.target.read_prompts(prompt)
        for _ in range(rounds + 1):
            for size in sizes:
                drafts = [[token % model.vocab_size] for token in range(size)]
                tree = PrefixTree.from_drafts(1, drafts)
                state = BatchCache(StackedCache.from_cache(cache, size + 2))
                found = verify_trees(model.target, state, [tree], form="tree")
                curve.add(size, found.target_seconds)
            if on_round is not None:
                on_round()
    return {size: 1e3 * float(curve.seconds([size])[0]) for size in sizes}
