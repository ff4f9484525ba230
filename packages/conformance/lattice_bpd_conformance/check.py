"""The checker: compares decoded outputs with the model's own `generate`."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lattice_bpd.decode.certificate.certificate import Certificate
from lattice_bpd.decode.certificate.own_generate import Choices
from lattice_bpd.decode.huggingface.custom_generate import CustomGenerate
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.models.hooks import device_of
from lattice_bpd_conformance.cases import (
    Case,
    Reference,
    ReferenceText,
    cut_at_end,
    generation_settings,
)

MAX_NEW_TOKENS = 24
OUTCOMES = ("equal", "tie", "refused", "different", "error")
FAILURES = ("different", "error")
_EOS_INDEX = 9  # of the output token that the "eos" setting makes a stop token
_MAX_COPIED = 50_000_000  # parameters up to which the draft model is a noisy copy of the model
_REFUSALS = (ValueError, TypeError, NotImplementedError, ImportError)


@dataclass(frozen=True)
class Verdict:
    """The result of a case.

    Attributes:
        case: the case.
        outcome: "equal": the tokens of the model's own `generate`. "tie": other texts, but at each
            position `generate`, made to write our text, prefers another token by no more than
            rounding explains. "refused": this library refused before it decoded anything.
            "different": other tokens, or with certificates other logits. "error": any other
            exception.
        detail: the refusal's reason, the tokens that differ, or the last line of the traceback.
        prompt: of a difference, the index of the prompt.
        position: of a difference, the index of the first token at which `generate` prefers another
            one by more than rounding, or else of the first at which it does at all.
        margin: of a difference, the logit of that other token minus that of ours, after a
            repetition penalty; None after an early end.
        bound: of a difference, the largest margin that rounding explains, measured by calls of the
            model itself.
        positions: tokens decoded.
        agreeing: those of them that `generate` selects after the tokens before them.
    """

    case: Case
    outcome: str
    detail: str = ""
    prompt: int | None = None
    position: int | None = None
    margin: float | None = None
    bound: float | None = None
    positions: int = 0
    agreeing: int = 0

    @property
    def failed(self) -> bool:
        """Whether it is "different" or "error"."""
        return self.outcome in FAILURES

    def to_json(self) -> dict[str, Any]:
        """The fields by name, and those of the case."""
        fields = asdict(self)
        return {**fields.pop("case"), **fields}


class Checker:
    """Checks one model; reference outputs are computed once.

    Args:
        model: a PreTrainedModel in evaluation mode.
        prompts: token ids of three or more prompts, of different lengths.
        max_new_tokens: per text.
        certificates: whether the logits of each text are compared, too, where `generate` decodes
            it with the model's own settings; takes about twice as long.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = MAX_NEW_TOKENS,
        *,
        certificates: bool = False,
    ) -> None:
        self.model, self.certificates = model, certificates
        self.max_new_tokens = max_new_tokens
        self.reference = Reference(model, [list(prompt) for prompt in prompts], max_new_tokens)
        plain = self.reference.texts()
        self.vocab_size = int(plain[0].logits.shape[-1])
        self._settings: dict[str, dict[str, Any]] = {
            "": {},
            "penalty": {"repetition_penalty": 1.5},
            "eos": {"eos_token_id": _choose_end(plain), "pad_token_id": 0},
        }

    def run(
        self, cases: Sequence[Case], report: Callable[[Verdict], None] | None = None
    ) -> list[Verdict]:
        """Check all cases.

        Args:
            cases: see `list_cases`.
            report: called with each verdict.
        """
        verdicts = []
        for case in cases:
            verdict = self.check(case)
            verdicts.append(verdict)
            if report is not None:
                report(verdict)
        return verdicts

    def check(self, case: Case) -> Verdict:
        """Decode one case and compare its outputs."""
        settings = self._settings[case.settings]
        texts = self.reference.texts(settings)[: case.batch_size]
        begin = 0 if self.model.config.is_encoder_decoder else None
        heads = InformedHeads(
            [text.output if begin == 0 else text.prompt + text.output for text in texts],
            self.vocab_size,
        )
        try:
            with generation_settings(self.model, settings), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs, certificates = self._decode(case, heads)
        except Exception as error:  # any exception is a result
            return _verdict_of_error(case, error, heads)
        verdict = self._compare(case, texts, outputs)
        for number, given in enumerate(certificates):
            if not verdict.failed and given.verdict == "different":
                noise = given.noise
                detail = (
                    f"logits differ by up to {given.difference:.3g} from those of generate, by "
                    f"{given.mean_difference:.3g} on average; rounding explains "
                    f"{noise.logit_bound:.3g} and {noise.mean_bound:.3g}"
                )
                verdict = replace(
                    verdict, outcome="different", detail=detail, prompt=number,
                    position=min(given.beyond, default=0), margin=None, bound=None,
                )  # fmt: skip
        return verdict

    @cached_property
    def _certifies(self) -> bool:
        """Whether certificates are wanted, and the model's own settings allow them."""
        try:
            if self.certificates:
                prompt = self.reference.prompts[0]
                generate(self.model, prompt, "greedy", max_new_tokens=1, certificate="report")
        except ValueError:
            return False
        return self.certificates

    def _decode(
        self, case: Case, heads: InformedHeads
    ) -> tuple[list[list[int]], list[Certificate]]:
        """The new tokens of each prompt (of an encoder-decoder all ids), and any certificates."""
        prompts = self.reference.prompts[: case.batch_size]
        options = self._sources(case)
        if case.strategy != "greedy":
            options["heads"] = heads
        if case.custom_generate:
            return self._custom_generate(case, prompts, options), []
        if not case.settings and self._certifies:
            options["certificate"] = "report"
        results = generate(
            self.model, prompts, self._config(case), max_new_tokens=self.max_new_tokens,
            layout=case.layout, **options,
        )  # fmt: skip
        start: list[int] = []
        if self.model.config.is_encoder_decoder:
            start = DraftingModel(self.model).target.decoder_prompt or []
        outputs = [[*start, *result.token_ids] for result in results]
        return outputs, [one.certificate for one in results if one.certificate is not None]

    def _custom_generate(
        self, case: Case, prompts: list[list[int]], options: dict[str, Any]
    ) -> list[list[int]]:
        longest = max(map(len, prompts))
        # Padded with a token of the prompt, since processors treat padding as text.
        rows = [prompt[:1] * (longest - len(prompt)) + prompt for prompt in prompts]
        masks = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        outputs = self.model.generate(
            torch.tensor(rows, device=device_of(self.model)),
            attention_mask=torch.tensor(masks, device=device_of(self.model)),
            do_sample=False,
            max_new_tokens=self.max_new_tokens,
            custom_generate=CustomGenerate(
                drafter=self._config(case), layout=case.layout, **options
            ),
        )
        return [cut_at_end(row[longest:].tolist(), self._ends(case)) for row in outputs]

    def _ends(self, case: Case) -> list[int]:
        """The stop tokens of a case."""
        own = getattr(self.model.generation_config, "eos_token_id", None)
        ends = self._settings[case.settings].get("eos_token_id", own)
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def _config(self, case: Case) -> DraftConfig:
        """Strategy and options of a case."""
        length = 4 if case.strategy == "draft_model" else None
        return DraftConfig(case.strategy, min(6, self.vocab_size), 5, 12, draft_length=length)

    def _sources(self, case: Case) -> dict[str, Any]:
        """The LM of a case's strategy."""
        if case.strategy in ("ngram", "p_best", "tree", "mixture"):
            return {"lm": self._lm}
        if case.strategy == "neural":
            return {"lm": self._scorer}
        return {"lm": self._draft_model} if case.strategy == "draft_model" else {}

    @cached_property
    def _lm(self) -> NGramLM:
        texts = [text.prompt + text.output for text in self.reference.texts()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few n-grams to estimate discounts from
            return NGramLM.train(texts, 3, vocab_size=self.vocab_size)

    @cached_property
    def _scorer(self) -> Any:
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=self.vocab_size, hidden_size=16, intermediate_size=16,
            num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=2048,
            eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        return LlamaForCausalLM(config).eval().to(device_of(self.model))  # type: ignore[no-untyped-call]

    @cached_property
    @torch.no_grad()
    def _draft_model(self) -> Any:
        """The model with noise on its weights, so that most of its drafts are accepted."""
        if self.model.config.is_encoder_decoder:
            return self._scorer
        if sum(weight.numel() for weight in self.model.parameters()) > _MAX_COPIED:
            return self.model
        model = copy.deepcopy(self.model)
        generator = torch.Generator().manual_seed(2)
        for weight in model.parameters():
            if weight.ndim >= 2 and weight.is_floating_point():
                noise = torch.randn(weight.shape, generator=generator, device="cpu")
                weight.mul_(1 + 0.02 * noise.to(weight))
        return model

    def _compare(
        self, case: Case, texts: Sequence[ReferenceText], outputs: Sequence[list[int]]
    ) -> Verdict:
        """The verdict on the first text that is different, else the first tie."""
        worst, positions, agreeing = Verdict(case, "equal"), 0, 0
        for number, (text, output) in enumerate(zip(texts, outputs, strict=True)):
            start = len(text.output) - len(text.logits)
            count = len(output) - start
            positions += count
            if output == text.output:
                agreeing += count
                continue
            choices = self.reference.follow(text, output[start:], self._settings[case.settings])
            agreeing += len(choices.token_ids) - len(choices.differing)
            verdict = self._difference(case, number, text, output, choices)
            if OUTCOMES.index(verdict.outcome) > OUTCOMES.index(worst.outcome):
                worst = verdict
        return replace(worst, positions=positions, agreeing=agreeing)

    def _difference(
        self, case: Case, number: int, text: ReferenceText, output: list[int], choices: Choices
    ) -> Verdict:
        start = len(text.output) - len(text.logits)
        own = self.model.generation_config.repetition_penalty or 1.0
        penalty = self._settings[case.settings].get("repetition_penalty", own)
        bound = self.reference.margin_bound * max(penalty, 1.0)
        apart = choices.differing
        beyond = [index for index in apart if -choices.margins[index] > bound]
        count, expected = len(output) - start, len(text.output) - start
        is_ended = bool(output) and output[-1] in self._ends(case)
        if (
            not beyond
            and (
                not apart  # the start or the end differs
                or output[:start] != text.output[:start]
                or len(choices.token_ids) != count  # it continues where `generate` ends
                or not (is_ended or count == max(expected, self.max_new_tokens))
            )
        ):
            detail = f"{count} tokens, expected {expected}"
            return Verdict(case, "different", detail, number, min(count, expected) + start)
        index = [*beyond, *apart][0]
        detail = f"token {output[start + index]}, expected {choices.token_ids[index]}"
        margin = 0.0 - choices.margins[index]  # not -0
        outcome = "different" if beyond else "tie"
        return Verdict(case, outcome, detail, number, start + index, margin, bound)


def _verdict_of_error(case: Case, error: Exception, heads: InformedHeads) -> Verdict:
    """The verdict "refused" if this library raised before the second token, else "error"."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    own = frame.f_globals["__name__"].startswith("lattice_bpd")  # or lattice_bpd_translation
    message = " ".join(str(error).split())
    if own and isinstance(error, _REFUSALS) and heads.max_decoded == 0:
        return Verdict(case, "refused", message)
    where = f" ({Path(frame.f_code.co_filename).name}:{line})"
    late = " after decoding began" if heads.max_decoded else ""
    return Verdict(case, "error", f"{type(error).__name__}{late}: {message[:300]}{where}")


def _choose_end(texts: Sequence[ReferenceText]) -> list[int]:
    """A stop token near the middle of the first text, and a later one of the second."""
    ends = []
    for text, offset in zip(texts[:2], (0, 5), strict=True):
        generated = text.output[-len(text.logits) :]
        ends.append(generated[min(_EOS_INDEX + offset, len(generated) - 1)])
    return sorted(set(ends))


_RANKS = (0, 0, 1, 0, None, 0, 1, 0, 0)  # of the right token; None: not among the candidates


class InformedHeads:
    """A source of head logits; see `lattice_bpd.decode.state.model.DraftHeads`.

    Args:
        texts: token ids of prompts and outputs; of encoder-decoders outputs only.
        vocab_size: V.
        num_slots: H.

    Attributes:
        num_slots: H.
        max_decoded: the most new tokens of any sequence when heads ran.
    """

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int, num_slots: int = 4) -> None:
        self.texts = [list(text) for text in texts]
        self.vocab_size, self.num_slots = vocab_size, num_slots
        self.max_decoded = 0

    def read_states(self, states: Sequence[Any]) -> Tensor:
        """(B, H, V) float32."""
        decoded = [len(state.tokens) - state.prompt_length for state in states]
        self.max_decoded = max(self.max_decoded, *decoded)
        return torch.stack([self._logits(list(state.tokens)) for state in states])

    def _logits(self, tokens: list[int]) -> Tensor:
        length = len(tokens)
        generator = torch.Generator().manual_seed(length)
        logits = torch.randn((self.num_slots, self.vocab_size), generator=generator, device="cpu")
        text = next((t for t in self.texts if t[:length] == tokens), None)
        following = [] if text is None else text[length : length + self.num_slots]
        for slot, token in enumerate(following):
            rank = _RANKS[(3 * length + 5 * slot) % len(_RANKS)]
            if rank is None:
                logits[slot, token] = -10.0
                continue
            logits[slot, token] = 10.0
            if rank == 1:
                logits[slot, (token + 1) % self.vocab_size] = 11.0
        return logits
