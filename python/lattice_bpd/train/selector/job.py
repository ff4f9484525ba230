"""The description of the training of a selector from files: SelectorJob."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass, field
from typing import Any

from lattice_bpd.train.selector.options import SelectorOptions
from lattice_bpd.train.text.corpus import Corpus
from lattice_bpd_kim2024.heads.text_job import FrozenTargetJob


@dataclass(frozen=True)
class SelectorJob(FrozenTargetJob):
    """A training of a selector: see FrozenTargetJob for text and output folder.

    `target` is a model folder with BlockwiseHeads, MedusaHeads or a BlockDrafter. With own_rows 0
    the held-out text itself is the validation text.

    Attributes:
        options: of the training; first_position is set to prompt_length for texts that the target
            generates.
        validate_every: steps between validations; 0: at the end only.
    """

    options: SelectorOptions = field(default_factory=SelectorOptions)
    validate_every: int = 0

    @property
    def train_options(self) -> SelectorOptions:
        """The options with the first position of the texts."""
        first = self.prompt_length if self.own_rows else 1
        return dataclasses.replace(self.options, first_position=first)

    def check(self) -> None:
        """Validates the options before anything is read.

        Raises:
            ValueError: the message names the option.
        """
        self.options.check()
        self.check_minimum("validate_every", 0)
        super().check()

    def record(self, corpus: Corpus, heads: str) -> dict[str, Any]:
        """Everything that the result depends on, for JSON; it must match to resume a run.

        Args:
            corpus: the training text.
            heads: their fingerprint.
        """
        return {**self.describe(corpus, asdict(self.train_options)), "heads_fingerprint": heads}
