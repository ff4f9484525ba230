"""The tasks: templates of Kim et al. 2024, appendix C.4, and the fields that fill them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from lattice_bpd_kim2024.tasks.metrics import METRICS

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
