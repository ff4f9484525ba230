"""Live decoding of some recorded prompts: is output greedy's, and are calls those of the replay?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lattice_bpd.decode.drafters.basic import NoDrafter
from lattice_bpd.decode.loop.loop import decode
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording
from lattice_bpd.evaluate.replay.sweep import Point
from lattice_bpd.lm.ngram import NGramLM


@dataclass
class LiveCheck:
    """One strategy, decoded live.

    Attributes:
        strategy: its name.
        texts: prompts decoded.
        lossless: those whose output is greedy's, token for token.
        same_calls: those with as many target calls as the replay says.
        tied: outputs that leave greedy's where the target's two best logits all but tie (a margin
            below 1e-3): calls of different shapes round differently.
    """

    strategy: str
    texts: int = 0
    lossless: int = 0
    same_calls: int = 0
    tied: int = 0

    @property
    def holds(self) -> bool:
        """Whether every output is greedy's, ties aside."""
        return self.lossless + self.tied == self.texts

    def to_json(self) -> dict[str, Any]:
        """The fields by name, and whether the check holds."""
        return {**asdict(self), "holds": self.holds}


TIE = 1e-3


def check_live(
    model: Any,
    recording: Recording,
    points: Sequence[Point],
    lms: Mapping[str, NGramLM],
    rescorers: Rescorers,
    *,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] = (),
    on_text: Callable[[], None] | None = None,
) -> list[LiveCheck]:
    """Decode all texts of a recording with all points.

    Args:
        model: what was recorded, a BlockwiseLM or a DraftingModel.
        recording: few texts.
        points: strategies with their numbers.
        lms: by the names that points use.
        rescorers: what strategies use besides LMs.
        max_new_tokens: as recorded.
        stop_token_ids: as recorded.
        on_text: called after each text of each point.

    Returns:
        A LiveCheck for each point.
    """
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop_token_ids": stop_token_ids}
    greedy = [
        decode(model, text.prompt.tolist(), NoDrafter(), **options).token_ids
        for text in recording.texts
    ]
    checks = []
    for point in points:
        used = replace(rescorers, lm=lms[point.lm] if point.lm else None)
        replayed = recording.replay(point.strategy, used, point.options)
        check = LiveCheck(point.strategy.name)
        for number, (text, wanted) in enumerate(zip(recording.texts, greedy, strict=True)):
            drafter = point.strategy.make_drafter(used, wanted, point.options)
            found = decode(model, text.prompt.tolist(), drafter, **options)
            check.texts += 1
            check.same_calls += bool(found.stats.target_calls == replayed.calls[number])
            if found.token_ids == wanted:
                check.lossless += 1
            else:
                check.tied += _leaves_at_a_tie(found.token_ids, wanted, text.margins.tolist())
            if on_text is not None:
                on_text()
        checks.append(check)
    return checks


def _leaves_at_a_tie(found: list[int], wanted: list[int], margins: list[float]) -> bool:
    pairs = enumerate(zip(found, wanted, margins, strict=False))
    return next((margin < TIE for _, (a, b, margin) in pairs if a != b), False)
