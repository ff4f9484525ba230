"""Loads the demo's model folder: target, heads, tokenizer, n-gram LM and settings.

DIR/config.json, model.safetensors, blockwise_heads.*   what `BlockwiseLM.save_pretrained` writes
DIR/tokenizer.json                                      byte-level BPE
DIR/ngram.lm                                            n-gram LM over its token ids
DIR/demo.json                                           DemoSettings
DIR/rescorer/                                           optional: a small causal LM that rescores

`examples/demo_model` is such a folder, and `make demo ARGS=--train` writes another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

import lattice_bpd
from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import write_json
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.extensions import require
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.blockwise import BlockwiseLM

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SETTINGS_FILE = "demo.json"
TOKENIZER_FILE = "tokenizer.json"
LM_FILE = "ngram.lm"
RESCORER_FOLDER = "rescorer"
DEFAULT_FOLDER = Path("examples") / "demo_model"
_VERSION = 1
_SIZES = ("prompt_length", "max_new_tokens", "top_k", "num_drafts", "max_nodes", "order")
_SAME_AS = {"ngram_1best": "p_best_ngram"}


@dataclass(frozen=True)
class DemoSettings:
    """The content of demo.json: how the demo decodes with this model.

    Attributes:
        prompt_length: tokens of a prompt.
        max_new_tokens: tokens decoded after it.
        top_k: k.
        num_drafts: p.
        max_nodes: N of trees.
        order: n of the n-gram LM.
        seed: of the choice of prompts.
        alpha: weight of the LM by the name of a setting; `p_best_ngram` and `tree` at least.
        temperature: of trees by the name of a setting; `tree` and `tree_0gram` at least.
        end_of_text: the token id that ends a document.
        training: how the model was trained; free-form.
        loops: share of looping positions after training, of "model" and "human" text.
    """

    prompt_length: int
    max_new_tokens: int
    top_k: int
    num_drafts: int
    max_nodes: int
    order: int
    seed: int
    alpha: dict[str, float]
    temperature: dict[str, float]
    end_of_text: int
    training: dict[str, Any] = field(default_factory=dict)
    loops: dict[str, float] = field(default_factory=dict)

    def options(self, name: str) -> DraftConfig:
        """The options of the setting `name`."""
        if name == "mixture":
            return DraftConfig(top_k=self.top_k)
        base = _SAME_AS.get(name, name)
        return DraftConfig(
            top_k=self.top_k,
            num_drafts=self.num_drafts,
            max_nodes=self.max_nodes,
            alpha=self.alpha.get(name, self.alpha.get(base, 0.0)),
            temperature=self.temperature.get(name, self.temperature.get(base, 1.0)),
        )

    def save(self, directory: Path) -> None:
        """Write demo.json.

        Raises:
            OSError: the folder cannot be written.
        """
        content = {"version": _VERSION, **asdict(self)}
        write_json(directory / SETTINGS_FILE, content)

    @classmethod
    def load(cls, directory: Path) -> DemoSettings:
        """Read demo.json.

        Raises:
            FormatError: it is damaged, of another version, or lacks a value.
            OSError: it cannot be read.
        """
        try:
            content = json.loads((directory / SETTINGS_FILE).read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.pop("version", None) != _VERSION:
                raise ValueError(f"expected an object of version {_VERSION}")
            settings = cls(**content)
            settings._check()
        except (ValueError, TypeError) as error:
            raise FormatError(f"{SETTINGS_FILE}: {error}") from error
        return settings

    def _check(self) -> None:
        for name in _SIZES:
            _check_integer(name, getattr(self, name), 1)
        for name in ("seed", "end_of_text"):
            _check_integer(name, getattr(self, name), 0)
        required = {"alpha": ("p_best_ngram", "tree"), "temperature": ("tree", "tree_0gram")}
        for kind, needed in required.items():
            values = getattr(self, kind)
            if not isinstance(values, dict) or not all(
                isinstance(value, (int, float)) and value > 0 for value in values.values()
            ):
                raise ValueError(f"{kind} is {values!r}; expected numbers above 0 by setting")
            if missing := [name for name in needed if name not in values]:
                raise ValueError(f"{kind} has no value for {', '.join(missing)}")
        for kind in ("training", "loops"):
            if not isinstance(getattr(self, kind), dict):
                raise ValueError(f"{kind} is {getattr(self, kind)!r}; expected an object")


@dataclass
class DemoModel:
    """A loaded demo model.

    Attributes:
        directory: its folder.
        tokenizer: of the `tokenizers` library.
        model: target and heads, in float32.
        lm: n-gram LM.
        settings: how the demo decodes with it.
    """

    directory: Path
    tokenizer: Tokenizer
    model: BlockwiseLM
    lm: NGramLM
    settings: DemoSettings

    @property
    def rescorer(self) -> Path | None:
        """The folder of its rescorer; None without one."""
        folder = self.directory / RESCORER_FOLDER
        return folder if folder.is_dir() else None

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text, (T_i,) int32."""
        return encode(self.tokenizer, texts)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
    """Token ids of each text, (T_i,) int32."""
    return [
        np.array(encoding.ids, dtype=np.int32) for encoding in tokenizer.encode_batch(list(texts))
    ]


def find_demo_model(directory: str | Path | None = None) -> Path:
    """The folder of a demo model.

    Args:
        directory: the folder; None: `examples/demo_model` of the source tree that the package was
            installed from (editable), or else of the current directory.

    Raises:
        FileNotFoundError: there is no such folder, or it has no demo.json.
    """
    if directory is not None:
        if not (Path(directory) / SETTINGS_FILE).is_file():
            raise FileNotFoundError(
                f"{directory} has no {SETTINGS_FILE}; expected the folder of a demo model, such as "
                f"{DEFAULT_FOLDER} in a clone or one that `make demo ARGS=--train` wrote"
            )
        return Path(directory)
    roots = [*Path(lattice_bpd.__file__).resolve().parents, Path.cwd()]
    for folder in (root / DEFAULT_FOLDER for root in roots):
        if (folder / SETTINGS_FILE).is_file():
            return folder
    raise FileNotFoundError(
        f"found no demo model: {DEFAULT_FOLDER} is part of the source tree, not of the installed "
        "package; run the command in a clone, give --model DIR, or train a model by "
        "`make demo ARGS=--train`"
    )


def load_demo_model(directory: str | Path | None = None) -> DemoModel:
    """Load a demo model in float32, also from files of another type.

    Args:
        directory: the folder; None: see `find_demo_model`.

    Raises:
        FileNotFoundError: there is no such folder.
        FormatError: a file is missing or damaged, or the files do not belong together.
    """
    folder = find_demo_model(directory)
    try:
        settings = DemoSettings.load(folder)
        tokenizer = _load_tokenizer(folder / TOKENIZER_FILE)
        model = BlockwiseLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        lm = NGramLM.load(folder / LM_FILE)
        demo = DemoModel(folder, tokenizer, model, lm, settings)
        _check_fit(demo)
    except (OSError, ValueError) as error:  # FormatError is a ValueError
        raise FormatError(
            f"{folder}: damaged demo model ({error}); restore the folder (git checkout -- "
            f"{DEFAULT_FOLDER} in a clone), or train another by `make demo ARGS=--train`"
        ) from error
    return demo


def _load_tokenizer(path: Path) -> Tokenizer:
    tokenizers = require("tokenizers", "train")
    try:
        tokenizer: Tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise FormatError(f"{path.name}: {error}") from error
    return tokenizer


def _check_fit(demo: DemoModel) -> None:
    """Raise FormatError unless tokenizer, model, LM and settings agree."""
    model, settings = demo.model, demo.settings
    sizes = (demo.tokenizer.get_vocab_size(), demo.lm.vocab_size)
    if sizes[0] > model.vocab_size or sizes[1] != model.vocab_size:
        raise FormatError(
            f"the vocabularies of tokenizer and LM have {sizes[0]} and {sizes[1]} tokens, the "
            f"model's {model.vocab_size}"
        )
    if demo.lm.order != settings.order:
        raise FormatError(
            f"{LM_FILE} is of order {demo.lm.order}, {SETTINGS_FILE} says {settings.order}"
        )
    if max(settings.end_of_text + 1, settings.top_k) > model.vocab_size:
        raise FormatError(
            f"{SETTINGS_FILE}: end_of_text {settings.end_of_text} or top_k {settings.top_k} is "
            f"beyond the vocabulary of {model.vocab_size}"
        )
    length, positions = settings.prompt_length + settings.max_new_tokens, model.max_positions
    if positions is not None and length > positions:
        raise FormatError(
            f"{SETTINGS_FILE}: prompt_length + max_new_tokens is {length}, but the model has "
            f"{positions} positions"
        )


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; expected an integer of {least} or more")
