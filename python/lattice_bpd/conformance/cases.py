"""The cases of a check: strategies, layouts, batch sizes, interfaces and generation settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_bpd.draft.config import STRATEGIES

BATCHES = (1, 3)
SETTINGS = ("", "penalty", "eos")


@dataclass(frozen=True)
class Case:
    """One way to decode.

    Attributes:
        strategy: of `lattice_bpd.draft.config.STRATEGIES`.
        batch_size: prompts per batch.
        layout: "tree" (tree attention), "rows" (batched verification) or "auto".
        custom_generate: call `model.generate(custom_generate=CustomGenerate(..))` instead of
            `lattice_bpd.decode.generate`.
        settings: generation settings of the model: "" unchanged, "penalty" (repetition penalty),
            "eos" (a token of the output is a stop token).
    """

    strategy: str
    batch_size: int = 1
    layout: str = "auto"
    custom_generate: bool = False
    settings: str = ""

    @property
    def name(self) -> str:
        """Such as "tree, 3 prompts, rows"."""
        parts = [self.strategy, f"{self.batch_size} prompt{'s' * (self.batch_size > 1)}"]
        parts += [self.layout] * (self.layout != "auto")
        parts += ["CustomGenerate"] * self.custom_generate
        return ", ".join([*parts, *([self.settings] if self.settings else [])])


def list_cases(strategies: Sequence[str] | None = None) -> list[Case]:
    """All combinations.

    Args:
        strategies: names; None: all.

    Raises:
        ValueError: an unknown strategy.
    """
    chosen = list(STRATEGIES if strategies is None else strategies)
    for name in chosen:
        if name not in STRATEGIES:
            raise ValueError(
                f"check: strategy is {name!r}; expected one of {', '.join(STRATEGIES)}"
            )
    cases = []
    for strategy in chosen:
        layouts = ("tree", "rows") if strategy != "greedy" else ("auto",)
        cases += [Case(strategy, size, layout) for layout in layouts for size in BATCHES]
        cases += [Case(strategy, 3, settings=settings) for settings in SETTINGS[1:]]
        if strategy != "oracle":  # decodes twice, which CustomGenerate refuses
            cases += [
                Case(strategy, size, custom_generate=True, settings=settings)
                for settings in SETTINGS
                for size in BATCHES
            ]
    return cases


def list_quick_cases() -> list[Case]:
    """A selection with every strategy, layout, batch size, interface and setting."""
    cases = [Case("greedy", 1), Case("greedy", 3), Case("tree", 1)]
    cases += [Case(name, size, layout)
              for name in ("bpd", "p_best", "tree") for size in BATCHES
              for layout in ("tree", "rows")]  # fmt: skip
    cases += [Case("mixture", 1), Case("mixture", 3)]
    listed = {case.strategy for case in cases}
    cases += [Case(name) for name in STRATEGIES if name not in listed]
    cases += [Case("tree", 3, settings="penalty"), Case("bpd", 3, settings="eos")]
    cases += [Case("greedy", 1, custom_generate=True), Case("tree", 1, custom_generate=True)]
    cases += [Case("tree", 3, custom_generate=True, settings=name) for name in SETTINGS]
    return cases
