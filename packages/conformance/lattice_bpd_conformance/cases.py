"""What a check decodes: its cases, prompts, and the outputs of `model.generate(do_sample=False)`.

No reference text is decoded by this library: the model's own method continues each prompt alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto

from lattice_bpd.decode.certificate.noise import follow_text
from lattice_bpd.decode.certificate.own_generate import Choices, write_text
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.draft.config import STRATEGIES
from lattice_bpd.extensions import DRAFTERS, known_extensions
from lattice_bpd.models.hooks import device_of

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
        strategies: names; None: all that are installed.

    Raises:
        ValueError: an unknown strategy.
    """
    chosen = list(_installed() if strategies is None else strategies)
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
        cases += [
            Case(strategy, size, custom_generate=True, settings=settings)
            for settings in SETTINGS
            for size in BATCHES
        ]
    return cases


def _installed() -> list[str]:
    """The strategies, without those of distributions that are not installed."""
    installed = known_extensions(DRAFTERS)
    return [name for name in STRATEGIES if installed.get(name, True)]


def list_quick_cases() -> list[Case]:
    """A selection with every strategy, layout, batch size, interface and setting."""
    cases = [Case("greedy", 1), Case("greedy", 3), Case("tree", 1)]
    cases += [Case(name, size, layout)
              for name in ("bpd", "p_best", "tree") for size in BATCHES
              for layout in ("tree", "rows")]  # fmt: skip
    cases += [Case("mixture", 1), Case("mixture", 3)]
    listed = {case.strategy for case in cases}
    cases += [Case(name) for name in _installed() if name not in listed]
    cases += [Case("tree", 3, settings="penalty"), Case("bpd", 3, settings="eos")]
    cases += [Case("greedy", 1, custom_generate=True), Case("tree", 1, custom_generate=True)]
    cases += [Case("tree", 3, custom_generate=True, settings=name) for name in SETTINGS]
    return cases


LENGTHS = (5, 12, 19)  # the two longer ones exceed the windows of tiny models
_TEXTS = (
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    "One fish, two fish, red fish, blue fish. One fish, two fish, red fish,",
)


def random_prompts(vocab_size: int, seed: int = 3) -> list[list[int]]:
    """Random token ids with repetitions, so that lookup finds drafts.

    Args:
        vocab_size: V; ids are from its middle, where special tokens are rare.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    low, high = vocab_size // 10, max(vocab_size * 3 // 4, vocab_size // 10 + 2)
    prompts = []
    for length in LENGTHS:
        piece = rng.integers(low, high, max(1, length * 3 // 5)).tolist()
        prompts.append((piece * 2)[:length])
    return prompts


def text_prompts(tokenizer: Any) -> list[list[int]]:
    """Token ids of three texts.

    Args:
        tokenizer: of `transformers`.
    """
    return [list(tokenizer(text)["input_ids"]) for text in _TEXTS]


KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "encoder-decoder": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "image-text": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}


def find_class(config: PreTrainedConfig) -> Any:
    """The language model class of a config.

    Raises:
        ValueError: `transformers` maps the config to no language model.
    """
    named = config.architectures or []
    for name in named:
        if any(name in mapping.values() for mapping in KINDS.values()):
            return getattr(transformers, name)
    for mapping in KINDS.values():
        if config.model_type in mapping:
            return getattr(transformers, mapping[config.model_type])
    raise ValueError(
        f"check: transformers {transformers.__version__} maps model type {config.model_type!r} to "
        "no language model; expected a causal LM or an encoder-decoder"
    )


@dataclass
class ReferenceText:
    """The output for one prompt.

    Attributes:
        prompt: (T,) ints; of an encoder-decoder the source.
        output: the ids that `generate` returned after the prompt; of an encoder-decoder all ids.
        logits: (m, V) float32 of each generated token, before any processor.
    """

    prompt: list[int]
    output: list[int]
    logits: Tensor


@dataclass
class Reference:
    """The outputs of a model under its own `generate`.

    Attributes:
        model: of `transformers`.
        prompts: token ids.
        max_new_tokens: of each text.
    """

    model: Any
    prompts: list[list[int]]
    max_new_tokens: int
    _texts: dict[str, list[ReferenceText]] = field(default_factory=dict)
    _followed: dict[Any, Choices] = field(default_factory=dict)

    def texts(self, settings: dict[str, Any] | None = None) -> list[ReferenceText]:
        """The output of each prompt.

        Args:
            settings: attributes of a GenerationConfig that replace the model's.
        """
        settings = settings or {}
        key = repr(sorted(settings.items()))
        if key not in self._texts:
            with generation_settings(self.model, settings):
                self._texts[key] = [self._generate(prompt) for prompt in self.prompts]
        return self._texts[key]

    @torch.inference_mode()
    def _generate(self, prompt: Sequence[int]) -> ReferenceText:
        ids = torch.tensor([list(prompt)], device=device_of(self.model))
        generated = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=self.max_new_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        output = generated.sequences[0].tolist()
        if not self.model.config.is_encoder_decoder:
            output = output[len(prompt) :]
        logits = torch.stack([step[0].float().cpu() for step in generated.logits])
        return ReferenceText(list(prompt), output, logits)

    def follow(
        self, text: ReferenceText, token_ids: Sequence[int], settings: dict[str, Any] | None = None
    ) -> Choices:
        """What `generate` selects along another text after the same prompt.

        Args:
            text: of `texts(settings)`.
            token_ids: (m,) ints, generated tokens.
            settings: see `texts`.

        Returns:
            The choices, fewer than m if `generate` ends before.
        """
        key = (repr(sorted((settings or {}).items())), tuple(text.prompt), tuple(token_ids))
        if key not in self._followed:
            self._followed[key] = choices = Choices(token_ids)
            with generation_settings(self.model, settings or {}):
                write_text(self.model, text.prompt, token_ids, choices)
        return self._followed[key]

    @cached_property
    def margin_bound(self) -> float:
        """The largest difference of two logits that rounding explains, by calls of the model."""
        target = DraftingModel(self.model).target
        bounds = []
        for text in self.texts():
            start = text.output[: len(text.output) - len(text.logits)]
            prompt, source = (start, text.prompt) if start else (text.prompt, None)
            token_ids = text.output[len(start) :]
            _, noise = follow_text(target, prompt, token_ids, source=source, cpu_kernels=True)
            bounds.append(noise.margin_bound)
        return max(bounds)


def cut_at_end(token_ids: list[int], end_token_ids: Sequence[int]) -> list[int]:
    """The tokens up to the first that ends a text, itself included; what follows is padding."""
    ends = (index for index, token in enumerate(token_ids, 1) if token in end_token_ids)
    return token_ids[: next(ends, None)]


@contextmanager
def generation_settings(model: Any, settings: dict[str, Any]) -> Iterator[None]:
    """Give the model a greedy generation config with some changes, and restore it afterwards."""
    before = model.generation_config
    changed = copy.deepcopy(before)
    for name, value in {"do_sample": False, **settings}.items():
        setattr(changed, name, value)
    model.generation_config = changed
    try:
        yield
    finally:
        model.generation_config = before
