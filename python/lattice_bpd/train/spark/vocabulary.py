"""The vocabulary of a distributed corpus or LM."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from lattice_bpd import _core


@dataclass(frozen=True)
class Vocabulary:
    """The number of token ids, and the ids of special symbols, if any.

    Attributes:
        vocab_size: V.
        bos_id: token id that is ``<s>``, if any; likewise eos_id and unk_id.
        eos_id: see bos_id.
        unk_id: see bos_id.
    """

    vocab_size: int
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None

    @functools.cached_property
    def core(self) -> _core.Vocabulary:
        """The core's vocabulary.

        Raises:
            ValueError: numbers out of range.
        """
        return _core.Vocabulary(self.vocab_size, self.bos_id, self.eos_id, self.unk_id)

    def __getstate__(self) -> dict[str, int | None]:
        """Everything but the core's vocabulary, which cannot be pickled."""
        state = dict(self.__dict__)
        state.pop("core", None)
        return state
