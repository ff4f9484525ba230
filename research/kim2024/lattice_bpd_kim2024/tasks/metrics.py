"""Metrics of output quality: those of Kim et al. 2024, table 1, and one for GSM8K."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lattice_bpd.extras import require

if TYPE_CHECKING:
    from lattice_bpd.decode.state.model import DraftingModel

Judge = Callable[[Sequence[str], Sequence[Sequence[str]]], float]


def exact_match(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Percentage of outputs whose first line is one of the answers.

    Case, punctuation, articles and white space are ignored (Rajpurkar et al. 2016).
    """
    hits = [
        any(_normalise(_first_line(output)) == _normalise(answer) for answer in answers)
        for output, answers in zip(outputs, references, strict=True)
    ]
    return _percentage(hits)


def rouge_l(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean ROUGE-L F1 in percent, with stemming; of several references the best counts.

    Raises:
        ImportError: rouge-score is missing.
    """
    scorer = require("rouge_score.rouge_scorer", "lattice-bpd-kim2024").RougeScorer(
        ["rougeL"], use_stemmer=True
    )
    scores = [
        max(scorer.score(answer, output)["rougeL"].fmeasure for answer in answers)
        for output, answers in zip(outputs, references, strict=True)
    ]
    return _percentage(scores)


def number_match(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Percentage of outputs whose last number is that of the reference, after #### (GSM8K)."""
    hits = [
        any(_last_number(output) == _last_number(answer) is not None for answer in answers)
        for output, answers in zip(outputs, references, strict=True)
    ]
    return _percentage(hits)


def measure_perplexity(model: DraftingModel, texts: Sequence[Sequence[int]]) -> float:
    """The target's perplexity of whole texts, on all tokens but the first of each.

    Args:
        model: target.
        texts: token ids of each; texts of one token are left out, and texts longer than the
            target's positions are cut at their end.

    Raises:
        ValueError: no text of two tokens or more.
    """
    import torch

    total, count = 0.0, 0
    with torch.inference_mode():
        for text in texts:
            ids = list(text)[: model.max_positions]
            if len(ids) < 2:
                continue
            tokens = torch.tensor([ids], device=model.device)
            logits = model.target.base(input_ids=tokens).logits[0, :-1].float()
            total += float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:])) * (
                len(ids) - 1
            )
            count += len(ids) - 1
    if count == 0:
        raise ValueError("measure_perplexity: no text of two tokens or more")
    return math.exp(total / count)


METRICS: dict[str, Judge | None] = {
    "exact_match": exact_match,
    "rouge_l": rouge_l,
    "number_match": number_match,
    "perplexity": None,  # of the texts, not of the output: measure_perplexity
}
"""Metrics by name: (outputs, references of each) -> a number."""


def _percentage(values: Sequence[float]) -> float:
    return 100.0 * sum(values) / len(values) if values else 0.0


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]


def _normalise(text: str) -> str:
    kept = "".join(mark for mark in text.lower() if mark not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def _last_number(text: str) -> float | None:
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(numbers[-1].replace(",", "")) if numbers else None
