"""The description of the training of a block drafter from files: BlockJob."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lattice_bpd.train.block_drafter.options import BlockTrainOptions
from lattice_bpd.train.text.corpus import Corpus
from lattice_bpd_kim2024.heads.text_job import FrozenTargetJob


@dataclass(frozen=True)
class BlockJob(FrozenTargetJob):
    """A training of a block drafter: see FrozenTargetJob for target, text and output folder.

    Attributes:
        num_layers: layers of the drafter.
        block_size: K, the anchor and K - 1 slots.
        hidden_layers: the target's layers whose outputs are read, from 0; empty: five evenly
            spaced ones from the second to the third to last, or the first, middle and last of a
            target with fewer than eight.
        intermediate_size: width of the drafter's MLPs; None: the target's.
        mask_token_id: the token that fills blocks; None: the largest that is not in the text.
        options: of the training; first_position is set to prompt_length - 1 for texts that the
            target generates.
    """

    num_layers: int = 2
    block_size: int = 9
    hidden_layers: Sequence[int] = ()
    intermediate_size: int | None = None
    mask_token_id: int | None = None
    options: BlockTrainOptions = field(default_factory=BlockTrainOptions)

    @property
    def validate_every(self) -> int:
        """Steps between validations; 0: at the end only."""
        return self.options.validate_every

    @property
    def train_options(self) -> BlockTrainOptions:
        """The options with the first position of the texts."""
        first = self.prompt_length - 1 if self.own_rows else 0
        return dataclasses.replace(self.options, first_position=first)

    def check(self) -> None:
        """Validates the options before anything is read.

        Raises:
            ValueError: the message names the option.
        """
        self.options.check()
        self.check_minimum("num_layers", 1)
        self.check_minimum("block_size", 2)
        super().check()

    def record(self, corpus: Corpus) -> dict[str, Any]:
        """Everything that the result depends on, for JSON; it must match to resume a run."""
        return self.describe(corpus, asdict(self.train_options))
