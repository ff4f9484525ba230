"""Files of n-best lists: JSON lines, and Kaldi's text archives."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice_bpd import _core
from lattice_bpd.text_input import parse_json, read_text
from lattice_bpd.train.corpus import split_words
from lattice_bpd_recognition.nbest import Hypothesis

_EXPECTED = 'an object {"id": .., "hypotheses": [{"text": .., "score": ..}, ..]} on each line'


@dataclass(frozen=True)
class NbestList:
    """The hypotheses of one utterance.

    Attributes:
        utterance: its name.
        hypotheses: text and score of each.
        rows: each as the file has it: a JSON object, or a line.
        record: the JSON object of the list; None for Kaldi's.
    """

    utterance: str
    hypotheses: list[Hypothesis]
    rows: list[Any]
    record: dict[str, Any] | None = None

    def reordered(self, order: Iterable[int]) -> str:
        """The list in its file's format, without the last line end; `order` has old positions."""
        rows = [self.rows[i] for i in order]
        if self.record is None:
            return "\n".join(rows)
        return json.dumps({**self.record, "hypotheses": rows}, ensure_ascii=False)


def read_nbest(
    path: str | Path,
    *,
    graph_costs: str | Path | None = None,
    acoustic_costs: str | Path | None = None,
    acoustic_scale: float = 1.0,
) -> list[NbestList]:
    """Reads n-best lists.

    Args:
        path: JSON lines, ``{"id": .., "hypotheses": [{"text": .., "score": ..}, ..]}`` each; or
            Kaldi's text of nbest-to-linear with words, "UTTERANCE-N WORD WORD .." on each line.
        graph_costs: Kaldi: file of "UTTERANCE-N COST" lines (nbest-to-linear's LM costs).
        acoustic_costs: Kaldi: the same, acoustic. One of both is needed.
        acoustic_scale: weight of acoustic costs.

    Returns:
        The lists in the order of the file; scores are minus the costs.

    Raises:
        OSError: a file cannot be read.
        FormatError: another format; the message has file and line.
        ValueError: Kaldi's text without costs, or JSON lines with costs.
    """
    text = read_text(path)
    if text.lstrip()[:1] in ("{", "["):
        if graph_costs is not None or acoustic_costs is not None:
            raise ValueError(f"{path}: JSON lines have scores; leave out the files of costs")
        return list(_read_json(str(path), text))
    if not text.strip():
        raise _core.FormatError(f"{path}: the file is empty; expected n-best lists")
    if graph_costs is None and acoustic_costs is None:
        raise ValueError(
            f"{path}: not JSON lines, so it is read as Kaldi's n-best text, which has no scores; "
            "give --acoustic-costs, --graph-costs or both"
        )
    files = [
        (1.0, {} if graph_costs is None else _read_costs(graph_costs), graph_costs),
        (acoustic_scale, {} if acoustic_costs is None else _read_costs(acoustic_costs),
         acoustic_costs),
    ]  # fmt: skip
    return _read_kaldi(str(path), text, files)


def _read_json(path: str, text: str) -> Iterator[NbestList]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        record = parse_json(line, where, _EXPECTED)
        rows = record.get("hypotheses") if isinstance(record, dict) else None
        name = record.get("id", str(number)) if isinstance(record, dict) else None
        if not isinstance(rows, list) or not isinstance(name, (str, int)):
            raise _core.FormatError(f"{where}: no list of hypotheses; expected {_EXPECTED}")
        hypotheses = []
        for i, row in enumerate(rows):
            fields: dict[str, Any] = row if isinstance(row, dict) else {}
            words: Any = fields.get("text")
            score: Any = fields.get("score")
            if not _is_text(words) or not _is_score(score):
                raise _core.FormatError(
                    f"{where}: hypothesis {i} has no text (a string or token ids) or no score (a "
                    f"number); expected {_EXPECTED}"
                )
            hypotheses.append(Hypothesis(words, float(score)))
        yield NbestList(str(name), hypotheses, rows, record)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(type(one) is int and 0 <= one < 1 << 31 for one in value)
    )


def _is_score(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _read_costs(path: str | Path) -> dict[str, float]:
    costs = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        fields = split_words(line)
        if not fields:
            continue
        try:
            name, cost = fields[0], float(fields[1])
        except (IndexError, ValueError):
            cost = math.nan
        if len(fields) != 2 or not math.isfinite(cost):
            raise _core.FormatError(f"{path}, line {number}: {line[:60]!r}; expected NAME COST")
        if name in costs:
            raise _core.FormatError(f"{path}, line {number}: {name} occurs twice")
        costs[name] = cost
    return costs


def _read_kaldi(
    path: str, text: str, files: list[tuple[float, dict[str, float], Any]]
) -> list[NbestList]:
    lists: dict[str, NbestList] = {}
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        key, *words = split_words(line)
        name, dash, rank = key.rpartition("-")
        if not dash or not rank.isdecimal():
            raise _core.FormatError(
                f"{path}, line {number}: {key!r}; expected UTTERANCE-N and words, as "
                "nbest-to-linear names hypotheses, or JSON lines"
            )
        if key in seen:
            raise _core.FormatError(f"{path}, line {number}: {key} occurs twice")
        seen.add(key)
        score = 0.0
        for scale, costs, file in files:
            if file is not None and key not in costs:
                raise _core.FormatError(f"{path}, line {number}: {key} has no cost in {file}")
            score -= scale * costs.get(key, 0.0)
        one = lists.setdefault(name, NbestList(name, [], []))
        one.hypotheses.append(Hypothesis(" ".join(words), score))
        one.rows.append(line.rstrip("\r"))
    return list(lists.values())


def read_references(path: str | Path) -> dict[str, str]:
    """The text of each utterance: JSON lines {"id": .., "text": ..}, or "UTTERANCE WORD ..".

    Raises:
        OSError: the file cannot be read.
        FormatError: another format, or an utterance twice; the message has file and line.
    """
    references: dict[str, str] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if line.lstrip().startswith("{"):
            expected = 'an object {"id": .., "text": ..} on each line'
            record = parse_json(line, where, expected)
            name, text = record.get("id"), record.get("text")
            if not isinstance(name, (str, int)) or not isinstance(text, str):
                raise _core.FormatError(f"{where}: no id or no text; expected {expected}")
        else:
            name, *words = split_words(line)
            text = " ".join(words)
        if str(name) in references:
            raise _core.FormatError(f"{where}: the utterance {name!r} occurs twice")
        references[str(name)] = text.strip()
    return references
