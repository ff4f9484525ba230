"""Which sources pay, measured by replay of held-out responses with measured call times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from lattice_bpd.build.bootstrap import FEWEST_TEXTS, Interval, bootstrap_ratio
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import make_mixture
from lattice_bpd.draft.replay import KnownText, ReplayResult, fit_to_texts, replay_text
from lattice_bpd.lm.ngram import NGramLM

MAX_NODES = 64  # draft tokens of a call whose size is chosen by cost
COST_SIZES = (0, 1, 3, 7, 15, 31, 63, MAX_NODES)  # of timed calls: all widths of recorded ones
COST_ROUNDS = 7
FITTING, HELD_OUT = 24, 40  # texts that the target decodes again for each choice
OWN_SECONDS = 3e-4  # of a step, besides the call of the target and the heads


# A text, n-gram LMs, whether heads are used, gates, and times of calls (or None: 16 draft tokens).
Decode = Callable[
    [KnownText, Sequence[NGramLM], bool, Gates, npt.NDArray[np.float64] | None], ReplayResult
]


@dataclass
class Source:
    """A source of drafts besides the text so far.

    Attributes:
        name: for tables, such as "LM of own responses".
        lm: the n-gram LM; None: the heads.
        keep: use it whatever it gains.
    """

    name: str
    lm: NGramLM | None
    keep: bool = False


@dataclass
class Step:
    """The decision about one source.

    Attributes:
        name: of the source.
        gain: relative gain in tokens/s over the sources chosen before it.
        is_used: whether it is used.
    """

    name: str
    gain: Interval
    is_used: bool


@dataclass
class Choice:
    """The chosen sources.

    Attributes:
        lms: n-gram LMs.
        heads: whether the heads are used.
        gates: fitted to these sources, without and with the target's predictions.
        steps: the decisions.
        gain: expected gain in tokens/s over greedy decoding.
        tokens_per_call: expected.
    """

    lms: list[NGramLM]
    heads: bool
    gates: tuple[Gates, ...]
    steps: list[Step]
    gain: Interval
    tokens_per_call: float


def choose_sources(
    vocab_size: int,
    sources: Sequence[Source],
    fitting: Sequence[KnownText],
    held_out: Sequence[KnownText],
    call_seconds: npt.NDArray[np.float64],
    head_seconds: float,
    *,
    own_seconds: float = OWN_SECONDS,
    is_chain: bool = False,
    decode: Decode | None = None,
) -> Choice:
    """The text so far, and of the sources in this order those whose gain is certain.

    Args:
        vocab_size: V of the target.
        sources: the candidates.
        fitting: responses to fit the gates to, with candidates where heads are a source.
        held_out: responses to measure, likewise.
        call_seconds: (MAX_NODES + 1,) float64, time of a call by its draft tokens.
        head_seconds: time of a call of the heads.
        own_seconds: of a step, besides both.
        is_chain: whether the engine verifies a single path.
        decode: decodes a text with some sources and the target's predictions; None: responses are
            replayed, without these predictions.

    Returns:
        The choice. A source is used if the interval of its gain is above 0; with fewer than 5
        held-out responses there is no interval, and none is used but those to keep.
    """

    def measure(sources: list[Source]) -> _Measured:
        heads = any(source.lm is None for source in sources)
        times = call_seconds + own_seconds + heads * head_seconds
        return _Measured(
            vocab_size, sources, fitting, held_out, call_seconds, times, is_chain, decode
        )

    used: list[Source] = []
    current = measure(used)
    steps = []
    for source in sources:
        trial = measure([*used, source])
        gain = bootstrap_ratio(current.seconds, trial.seconds, less=1.0)
        is_used = source.keep or (gain.low > 0.0 and len(held_out) >= FEWEST_TEXTS)
        steps.append(Step(source.name, gain, is_used))
        if is_used:
            used, current = trial.sources, trial
    greedy = np.array(current.tokens) * call_seconds[0]
    return Choice(
        [source.lm for source in used if source.lm is not None],
        any(source.lm is None for source in used),
        current.gates,
        steps,
        bootstrap_ratio(greedy, current.seconds, less=1.0),
        sum(current.tokens) / sum(current.calls),
    )


class _Measured:
    """Tokens, calls and seconds of the held-out responses with some sources."""

    def __init__(
        self, vocab_size: int, sources: list[Source], fitting: Sequence[KnownText],
        held_out: Sequence[KnownText], call_seconds: npt.NDArray[np.float64],
        times: npt.NDArray[np.float64], is_chain: bool, decode: Decode | None = None,
    ) -> None:  # fmt: skip
        self.sources = sources
        lms = [source.lm for source in sources if source.lm is not None]
        heads = any(source.lm is None for source in sources)

        def seen(texts: Sequence[KnownText]) -> list[KnownText]:
            return [t if heads else KnownText(t.token_ids, t.prompt_length) for t in texts]

        gates = fit_to_texts(vocab_size, lms, seen(fitting))
        self.gates: tuple[Gates, ...] = (gates,)
        if decode is None:
            mixture = make_mixture(vocab_size, lms, heads=heads, text=True, store=None, gates=gates)
            replay = partial(replay_text, mixture, max_nodes=MAX_NODES, is_chain=is_chain)
            results = [replay(text, times=times) for text in seen(held_out)]
        else:
            gates = gates.adapt((*gates.sources, "target"))
            results = [decode(text, lms, heads, gates, None) for text in fitting[:FITTING]]
            gates = gates.fit([one.examples for one in results], gates.weights)
            self.gates += (gates,)
            results = [decode(text, lms, heads, gates, times) for text in held_out[:HELD_OUT]]
        self.tokens, self.calls, self.seconds = [], [], []
        for result in results:
            self.tokens.append(result.tokens)
            self.calls.append(result.calls)
            self.seconds.append(float(times[result.sizes].sum()) + float(call_seconds[0]))
