"""Prompts with references, from the items of a file by the template of a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd_kim2024.tasks.files import Item, read_items
from lattice_bpd_kim2024.tasks.table import Names, Task

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
        path: see `lattice_bpd_kim2024.tasks.files.read_items`.
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
