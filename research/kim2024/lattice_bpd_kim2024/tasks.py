"""Evaluation tasks: prompts and references from the user's files, and what judges outputs."""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lattice_bpd._core import FormatError
from lattice_bpd.extensions import require
from lattice_bpd.text_input import parse_json, read_text

if TYPE_CHECKING:
    from lattice_bpd.decode.state.model import DraftingModel


class Item(NamedTuple):
    """One example: its values by name, and its file and line for messages."""

    fields: dict[str, Any]
    location: str


def read_items(path: str | Path) -> Iterator[Item]:
    """The examples of a file, in the format of its suffix (before .gz or .zst).

    Args:
        path: .jsonl or .ndjson: an object per line. .json: a list of objects, an object with such
            a list under "data", or SQuAD's nested format (questions without an answer are left
            out). .csv, .tsv: a header, then values. Else plain text: paragraphs separated by empty
            lines, each the field "text".

    Raises:
        OSError: it cannot be read.
        FormatError: damaged, not UTF-8, or not in the format of its suffix.
        ValueError: an empty file.
    """
    path = Path(path)
    text = read_text(path)
    name = re.sub(r"\.(gz|zst)$", "", path.name, flags=re.IGNORECASE)
    read = _READERS.get(name.rsplit(".", 1)[-1].lower(), _read_paragraphs)
    empty = True
    for item in read(text, path):
        empty = False
        yield item
    if empty:
        raise ValueError(f"{path}: no examples in the file; expected one or more")


def _read_lines(text: str, path: Path) -> Iterator[Item]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            location = f"{path}, line {number}"
            yield _to_item(parse_json(line, location, "an object on each line"), location)


def _read_json(text: str, path: Path) -> Iterator[Item]:
    value = parse_json(
        text, str(path), "a list of objects; files with an object on each line end in .jsonl"
    )
    if isinstance(value, dict):
        value = value.get("data")
    if not isinstance(value, list):
        raise FormatError(
            f'{path}: expected a list of objects, or an object with one under "data", as SQuAD has'
        )
    for number, entry in enumerate(value, 1):
        if isinstance(entry, dict) and "paragraphs" in entry:
            yield from _read_article(entry, f"{path}, article {number}")
        else:
            yield _to_item(entry, f"{path}, item {number}")


def _read_article(article: dict[str, Any], location: str) -> Iterator[Item]:
    """SQuAD's nesting: articles of paragraphs of questions."""
    try:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                if question.get("is_impossible") or not question.get("answers"):
                    continue
                fields = {**question, "context": paragraph["context"]}
                yield Item(fields, f"{location}, question {question.get('id', '?')}")
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{location}: not SQuAD's format ({error!r}); expected paragraphs with context and qas"
        ) from error


def _read_csv(text: str, path: Path) -> Iterator[Item]:
    dialect = "excel-tab" if ".tsv" in path.name.lower() else "excel"
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, dialect=dialect)
    limit = csv.field_size_limit(len(text) + 1)  # documents are longer than csv's 131,072
    try:
        for row in reader:
            location = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise FormatError(
                    f"{location}: another number of values than the first line has names "
                    f"({len(reader.fieldnames or ())}); quote values that hold commas"
                )
            yield Item({str(key): value for key, value in row.items()}, location)
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num}: damaged CSV ({error})") from error
    finally:
        csv.field_size_limit(limit)


def _read_paragraphs(text: str, path: Path) -> Iterator[Item]:
    line = 1
    for piece in re.split(r"((?:\n[ \t\r]*)+\n)", text):
        if piece.strip():
            yield Item({"text": piece.strip("\r\n")}, f"{path}, line {line}")
        line += piece.count("\n")


def _to_item(value: Any, location: str) -> Item:
    if not isinstance(value, dict):
        raise FormatError(f"{location}: a JSON {type(value).__name__}; expected an object")
    return Item(value, location)


_READERS = {
    "jsonl": _read_lines, "ndjson": _read_lines, "json": _read_json, "csv": _read_csv,
    "tsv": _read_csv,
}  # fmt: skip


Judge = Callable[[Sequence[str], Sequence[Sequence[str]]], float]


def exact_match(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Percentage of outputs whose first line is one of the answers.

    Case, punctuation, articles and white space are ignored (Rajpurkar et al. 2016).
    """
    hits = [
        any(_normalize(_first_line(output)) == _normalize(answer) for answer in answers)
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


def _normalize(text: str) -> str:
    kept = "".join(mark for mark in text.lower() if mark not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def _last_number(text: str) -> float | None:
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(numbers[-1].replace(",", "")) if numbers else None


Names = tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """One kind of evaluation data.

    Attributes:
        name: on the command line and in results.json.
        title: in tables.
        group: line of the paper's tables ("LM", "QA", "S-Sum", "L-Sum"), or our own.
        template: the prompt; {slots} are filled from the fields of an item.
        fields: for each slot the field names that files use; the first one present is taken.
        references: names of the field with references; none: the output is not judged.
        metric: of METRICS; None: the output is not judged.
        optional: slots that are left empty if missing.
        prompt_tokens: length in tokens that texts without a question are cut to.
        kind_field: the field with the category.
    """

    name: str
    title: str
    group: str
    template: str
    fields: dict[str, Names]
    references: Names = ()
    metric: str | None = None
    optional: Names = field(default=())
    prompt_tokens: int | None = None
    kind_field: str | None = None

    def __post_init__(self) -> None:
        """Check that the metric exists."""
        if self.metric is not None and self.metric not in METRICS:
            raise ValueError(f"Task {self.name}: unknown metric {self.metric!r}")


_ARTICLE = ("article", "document", "text")
_SUMMARY = ("highlights", "summary")

_ALL = (
    Task("lambada", "LAMBADA", "LM", "{context}", {"context": ("context", "text")},
         ("continuation",), "perplexity"),
    Task("squad", "SQuAD V1", "QA", "question: {question} context: {context}",
         {"question": ("question",), "context": ("context",)}, ("answers",), "exact_match"),
    Task("cnndm", "CNN/Daily", "S-Sum", "summarize: {text}", {"text": _ARTICLE}, _SUMMARY,
         "rouge_l"),
    Task("samsum", "SAMSum", "S-Sum", "Here is a dialogue: {text}\nWrite a short summary!",
         {"text": ("dialogue", "text")}, _SUMMARY, "rouge_l"),
    Task("multinews", "MultiNews", "L-Sum", "Write a summary based on this article: {text}",
         {"text": _ARTICLE}, _SUMMARY, "rouge_l"),
    Task("xsum", "XSUM", "L-Sum", "Summarize: {text}", {"text": _ARTICLE}, _SUMMARY, "rouge_l"),
    Task("newsroom", "NewsRoom", "L-Sum",
         "Please write a short summary for the following article: {title} {text}",
         {"title": ("title",), "text": ("text", "document")}, _SUMMARY, "rouge_l", ("title",)),
    Task("spec_bench", "Spec-Bench", "mixed", "{turn}", {"turn": ("turns",)},
         kind_field="category"),
    Task("humaneval", "HumanEval", "code", "{prompt}", {"prompt": ("prompt",)}),
    Task("gsm8k", "GSM8K", "maths", "Question: {question}\nAnswer:", {"question": ("question",)},
         ("answer",), "number_match"),
    Task("text", "text", "text", "{text}", {"text": ("text",)}, prompt_tokens=48),
    Task("jsonl", "JSON lines", "text", "{text}", {"text": ("text", "prompt")}),
)  # fmt: skip

TASKS = {task.name: task for task in _ALL}
"""Every task by name."""


def find_task(name: str) -> Task:
    """A task by name.

    Raises:
        ValueError: an unknown name; the message has the nearest one.
    """
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown task {name!r}; {hint}expected one of {', '.join(TASKS)}")


_NAMES = ("id", "task_id", "question_id")


@dataclass(frozen=True)
class Example:
    """A prompt and its references.

    Attributes:
        prompt: text.
        references: texts; empty if the task is not judged.
        name: its id in the file, else its number.
        kind: its category, if the task has any.
    """

    prompt: str
    references: tuple[str, ...]
    name: str
    kind: str = ""


def read_task(
    task: Task, path: str | Path, limit: int | None = None, field: str | None = None
) -> list[Example]:
    """The examples of a file.

    Args:
        task: the template of the prompt and its fields.
        path: see `lattice_bpd_kim2024.tasks.read_items`.
        limit: maximum number of examples.
        field: the field with the text, for tasks with a single slot.

    Raises:
        OSError: it cannot be read.
        FormatError: damaged, or an example with a missing or empty field; the message has file
            and line.
        ValueError: an empty file, or limit below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; expected 1 or more")
    fields = task.fields
    if field is not None:
        if len(fields) != 1:
            raise ValueError(f"task {task.name} has fields of its own; leave field (--field) out")
        fields = dict.fromkeys(fields, (field,))
    return list(islice(_examples(task, fields, path), limit))


def _examples(task: Task, fields: dict[str, Names], path: str | Path) -> Iterator[Example]:
    for number, item in enumerate(read_items(path)):
        values = {slot: _text(item, names, slot in task.optional) for slot, names in fields.items()}
        template = task.template
        for slot in task.optional:
            template = template if values[slot] else template.replace(f"{{{slot}}} ", "")
        prompt = template.format(**values)
        references = _references(task, item)
        if task.name == "lambada" and not references:
            prompt, references = _without_last_word(prompt, item)
        name = next((str(item.fields[key]) for key in _NAMES if key in item.fields), str(number))
        kind = str(item.fields.get(task.kind_field, "")) if task.kind_field else ""
        yield Example(prompt, references, name, kind)


def _text(item: Item, names: Names, optional: bool) -> str:
    """The first of these fields that is present."""
    for name in names:
        if name in item.fields:
            texts = _texts(item.fields[name])
            if texts and texts[0].strip():
                return texts[0]
            if optional:
                return ""
            raise FormatError(
                f"{item.location}: field {name!r} is empty or no text; expected some; repair the "
                "example or leave it out"
            )
    if optional:
        return ""
    present = ", ".join(map(repr, item.fields)) or "none"
    raise FormatError(
        f"{item.location}: no field {' or '.join(map(repr, names))}; its fields are: {present}; "
        "check that the file belongs to the task"
    )


def _references(task: Task, item: Item) -> tuple[str, ...]:
    for name in task.references:
        if name in item.fields:
            return tuple(text for text in _texts(item.fields[name]) if text.strip())
    return ()


def _texts(value: Any) -> Sequence[str]:
    """A text, a list of texts or of objects with one, or SQuAD's {"text": [..]}."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict):
        return _texts(value.get("text", ()))
    if isinstance(value, list):
        return [text for entry in value for text in _texts(entry)]
    return ()


def _without_last_word(text: str, item: Item) -> tuple[str, tuple[str, ...]]:
    """LAMBADA's passages end in the word to predict (Paperno et al. 2016)."""
    context, _, word = text.rstrip().rpartition(" ")
    if not context:
        raise FormatError(f"{item.location}: a passage of one word; expected more")
    return context, (word,)
