"""Live decoding of recorded prompts, compared with greedy decoding and with the replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lattice_bpd.decode.drafters.drafter import NoDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.live.compare import find_difference
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording
from lattice_bpd_kim2024.replay.scorers import Scorers
from lattice_bpd_kim2024.replay.sweep import Point


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
        differ only where rounding decides, see `Difference`, holds: whether all texts are lossless
        or tied}.
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
        rows = zip(recording.texts, greedy, replayed.calls, strict=True)
        for number, (text, wanted, calls) in enumerate(rows):
            drafter = point.strategy.make_drafter(used, wanted, point.options)
            output = decode(model, text.model_input, drafter, **options)
            same_calls += bool(output.stats.target_calls == calls)
            if output.token_ids == wanted:
                lossless += 1
            else:
                pair = wanted, output.token_ids
                tied += find_difference(model, number, text.model_input, *pair).is_tie
            on_text()
        texts = len(recording.texts)
        checks.append(
            {
                "strategy": point.strategy.name, "texts": texts, "lossless": lossless,
                "same_calls": same_calls, "tied": tied, "holds": lossless + tied == texts,
            }
        )  # fmt: skip
    return checks
