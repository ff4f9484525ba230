"""Live decoding of recorded prompts, compared with greedy decoding and with the replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lattice_bpd.decode.drafters.drafter import NoDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording
from lattice_bpd.evaluate.replay.scorers import Scorers
from lattice_bpd.evaluate.replay.sweep import Point
from lattice_bpd.lm.ngram import NGramLM

TIE = 1e-3  # margin of the target's best logit; calls of different shapes round differently


def check_live(
    model: Any,
    recording: Recording,
    points: Sequence[Point],
    lms: Mapping[str, NGramLM],
    rescorers: Rescorers,
    on_text: Callable[[], None],
    *,
    scorers: Scorers | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Decode all texts of a recording with all points.

    Args:
        model: the recorded BlockwiseLM or DraftingModel.
        recording: texts to decode.
        points: strategies with their options.
        lms: by the names that points use.
        rescorers: what strategies use besides LMs and scorers.
        on_text: called after each text of each point.
        scorers: by the strategies and names that points use.
        options: max_new_tokens and stop_token_ids of the record.

    Returns:
        For each point {strategy, texts: decoded prompts, lossless: those whose output equals greedy
        decoding, same_calls: those with as many target calls as in the replay, tied: those that
        first differ from greedy decoding at a near tie, holds: whether all texts are lossless or
        tied}.
    """
    greedy = [
        decode(model, text.model_input, NoDrafter(), **options).token_ids
        for text in recording.texts
    ]
    checks = []
    for point in points:
        used = point.rescorers(rescorers, lms, scorers or {})
        replayed = recording.replay(point.strategy, used, point.options)
        lossless = same_calls = tied = 0
        for text, wanted, calls in zip(recording.texts, greedy, replayed.calls, strict=True):
            drafter = point.strategy.make_drafter(used, wanted, point.options)
            output = decode(model, text.model_input, drafter, **options)
            same_calls += bool(output.stats.target_calls == calls)
            equal = output.token_ids == wanted
            lossless += equal
            tied += not equal and _differs_at_a_tie(output.token_ids, wanted, text.margins.tolist())
            on_text()
        texts = len(recording.texts)
        checks.append(
            {
                "strategy": point.strategy.name, "texts": texts, "lossless": lossless,
                "same_calls": same_calls, "tied": tied, "holds": lossless + tied == texts,
            }
        )  # fmt: skip
    return checks


def _differs_at_a_tie(output: list[int], wanted: list[int], margins: list[float]) -> bool:
    positions = zip(output, wanted, margins, strict=False)
    return next((margin < TIE for token, other, margin in positions if token != other), False)
