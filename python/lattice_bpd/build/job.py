"""What `lattice-bpd build` is to do."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from lattice_bpd._core import FormatError
from lattice_bpd.build.bootstrap import FEWEST_TEXTS
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.text_input import read_text
from lattice_bpd.train.responses.formats import Chat
from lattice_bpd.train.responses.prompts import Skipped, read_chats

FEWEST_CHATS = 3  # one each to train on, to fit the gates to and to measure
_OWN_PROMPTS = 1_000  # where no others are given
_HELD_OUT = 0.1  # of the conversations, to measure; as many to fit the gates


@dataclass(frozen=True)
class BuildJob:
    """Inputs and options of `build_drafter`.

    Attributes:
        output: folder of the drafter; its folder `build_files` keeps what later builds continue
            from, which may be private.
        prompts: files, see `read_chats`.
        own_prompts: prompts that the model writes itself, to train on beside those of files;
            without files also to fit the mixture and to measure. None: 1,000 without files, else
            none.
        responses: conversations with the model's own responses, such as logs of a server, in the
            formats of prompts; nothing is generated for them.
        server: a running server of the model answers the prompts, many at a time: one with
            OpenAI's API, such as http://localhost:8000; OPENAI_API_KEY is its key. None: the model
            does.
        server_model: name that the server has for the model. None: that of the first model that it
            lists.
        chat: whether prompts go through the model's chat template, where it has one.
        max_new_tokens: most tokens of a response.
        order: of the n-gram LM of the responses.
        max_bytes: size of the n-gram LM and heads, such as 8M: prunes the LM; with heads, each has
            half of it, and heads are as wide as fits. None: as they are.
        lms: further n-gram LMs, of ngram train --model MODEL.
        costs: JSON with milliseconds of a step of the engine that will serve, by draft tokens, such
            as {"0": 21.5, "4": 24}; it verifies a single path. None: times measured here.
        heads: whether to train draft heads too.
        epochs: of the heads' training.
        keep_heads: train heads, and keep them whatever they gain.
        seconds: time of the whole build, such as 20m: uses as many prompts as fit. None: all.
        batch_size: responses, or requests to a server, at a time.
    """

    output: Path
    prompts: tuple[str, ...] = ()
    own_prompts: int | None = None
    responses: tuple[str, ...] = ()
    server: str | None = None
    server_model: str | None = None
    chat: bool = True
    max_new_tokens: int = 128
    order: int = 5
    max_bytes: int | None = None
    lms: tuple[Path, ...] = ()
    costs: Path | None = None
    heads: bool = False
    epochs: float = 6.0
    keep_heads: bool = False
    seconds: float | None = None
    batch_size: int = 64

    @property
    def kept(self) -> Path:
        """The folder of what later builds continue from."""
        return self.output / "build_files"

    @cached_property
    def skipped(self) -> tuple[list[Skipped], list[Skipped]]:
        """The records of `prompts` and of `responses` that are no conversations."""
        return [], []

    @cached_property
    def chats(self) -> list[Chat]:
        """The conversations of `prompts`."""
        return [chat for file in self.prompts for chat in read_chats(file, self.skipped[0])]

    @cached_property
    def given(self) -> list[Chat]:
        """The conversations of `responses`."""
        return [chat for file in self.responses for chat in read_chats(file, self.skipped[1])]

    @property
    def num_own_prompts(self) -> int:
        """How many prompts the model writes."""
        default = 0 if self.prompts or self.responses else _OWN_PROMPTS
        return default if self.own_prompts is None else self.own_prompts

    @cached_property
    def given_lms(self) -> list[NGramLM]:
        """The LMs of `lms`."""
        return [NGramLM.load(path) for path in self.lms]

    @cached_property
    def given_costs(self) -> dict[int, float] | None:
        """The times of `costs`."""
        return None if self.costs is None else read_costs(self.costs)

    def check(self) -> None:
        """Reads the files, before torch and a model are loaded.

        Raises:
            ValueError: too few prompts, an option out of range, or the folder of a model as output.
            OSError: a file that cannot be read, or an output that is one.
            FormatError: a file of another format.
        """
        if self.output.exists() and not self.output.is_dir():
            raise NotADirectoryError(f"{self.output} is a file; expected a folder to write")
        if (self.output / "config.json").exists():
            raise ValueError(f"-o {self.output} is the folder of a model; expected one of its own")
        for option, value, most in (
            ("order", self.order, 6), ("epochs", self.epochs, math.inf),
            ("batch-size", self.batch_size, math.inf), ("max-size", self.max_bytes, math.inf),
            ("max-new-tokens", self.max_new_tokens, math.inf),
            ("own-prompts", self.own_prompts, math.inf),
        ):  # fmt: skip
            if value is not None and not 0 < value <= most:
                upper = "" if most == math.inf else f", at most {most}"
                raise ValueError(f"build: --{option} is {value}; expected more than 0{upper}")
        self.check_count(len(self.chats))
        _ = self.given_lms, self.given_costs

    def check_count(self, chats: int) -> None:
        """Raises ValueError where so many conversations of `prompts` are too few."""
        if (count := chats + len(self.given) + self.num_own_prompts) < FEWEST_CHATS:
            raise ValueError(
                f"build: found {count} prompts; expected {FEWEST_CHATS} or more in --prompts FILE "
                "or --responses FILE, or by --own-prompts: to train on, to fit the mixture to and "
                "to measure"
            )


def split_chats(
    chats: Collection[int], own: Collection[int] = ()
) -> tuple[set[int], set[int], set[int]]:
    """Those of some conversations to train on, to fit the gates to, and to measure, at random.

    Those with prompts that the model wrote are to train on, if there are enough others.
    """
    given = sorted(set(chats) - set(own))
    if len(given) < FEWEST_CHATS:
        given = sorted(chats)
    order = np.random.default_rng(1).permutation(np.array(given, int)).tolist()
    count = max(1, round(_HELD_OUT * len(order)), min(FEWEST_TEXTS, len(order) // 3))
    held_out, fitting = set(order[:count]), set(order[count : 2 * count])
    return set(chats) - held_out - fitting, fitting, held_out


def read_costs(path: str | Path) -> dict[int, float]:
    """Call times from JSON.

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
        value = json.loads(read_text(path))
        costs = {int(size): float(cost) for size, cost in value.items()}
        for size, cost in costs.items():
            if size < 0 or not 0.0 < cost < math.inf:
                raise ValueError(f"{size} draft tokens in {cost} ms")
        if len(costs) < 2:
            raise ValueError(f"{len(costs)} sizes; expected two or more")
    except (ValueError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path}: not a cost curve ({error}); expected draft tokens and milliseconds above 0, "
            'such as {"0": 1.9, "36": 2.4}'
        ) from error
    return dict(sorted(costs.items()))
