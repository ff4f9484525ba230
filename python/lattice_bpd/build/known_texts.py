"""Known texts decoded again by the target: what replay cannot tell, its predictions elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.decode.drafters.mixture import MixtureDrafter
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import TextStore
from lattice_bpd.draft.replay import KnownText, ReplayResult
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree


class _FixedCosts:
    """Times of calls that are not measured, in the place of `ModelCosts` and `CallCosts`."""

    def __init__(self, times: npt.NDArray[np.float64]) -> None:
        self._times = times

    def of(self, _batch: int) -> Any:
        return self

    def add(self, _size: int, _seconds: float) -> None: ...

    def next_to_measure(self) -> None: ...

    def times(self, max_size: int) -> npt.NDArray[np.float64]:
        return self._times[: max_size + 1]


class _Recorder(MixtureDrafter):
    """Keeps the sizes of its drafts and the examples of its gates."""

    text: _core.MixtureText | None = None
    sizes: tuple[int, ...] = ()

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        trees = super().propose(states)
        self.sizes += (len(trees[0]) - 1,)
        return trees

    def _new_text(self, state: DecodeState) -> _core.MixtureText:
        self.text = super()._new_text(state)
        self.text.keep_examples()
        return self.text


def decode_known(
    model: Any,
    text: KnownText,
    lms: Sequence[NGramLM],
    heads: Any,
    gates: Gates,
    *,
    max_nodes: int = 16,
    times: npt.NDArray[np.float64] | None = None,
    store: TextStore | None = None,
) -> ReplayResult:
    """As `replay_text`, by the target itself, with its predictions as a source.

    Args:
        model: the target.
        text: its prompt is decoded, to the length of the text.
        lms: n-gram LMs.
        heads: of the model; None: without.
        gates: of these sources, the text so far, the store and "target".
        max_nodes: N, draft tokens of a call without `times`.
        times: seconds of a call by its draft tokens, which then decide how many there are.
        store: texts served before, a source too.
    """
    drafter = _Recorder(
        lms, heads=heads is not None, gates=gates, store=store,
        max_nodes=max_nodes if times is None else "auto",
        costs=None if times is None else _FixedCosts(times),  # type: ignore[arg-type]
    )  # fmt: skip
    prompt = list(text.token_ids[: text.prompt_length])
    result: Any = generate(
        model, prompt, drafter, heads=heads, stop_token_ids=(),
        max_new_tokens=len(text.token_ids) - len(prompt),
    )  # fmt: skip
    sizes = [*drafter.sizes]
    sizes += [0] * (result.stats.target_calls - 1 - len(sizes))  # of calls at the end of the text
    return ReplayResult(
        len(result.token_ids), sizes, None if drafter.text is None else drafter.text.examples()
    )
