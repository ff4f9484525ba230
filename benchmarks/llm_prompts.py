"""Prompts of the yardstick as token ids, and what their greedy outputs copy and repeat."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROMPTS = Path(__file__).resolve().parent / "prompts" / "prompts.jsonl"
COPY_WINDOW, LOOP_WINDOW = 4, 8
Answer = Callable[[list[int]], list[int]]


class Prompt(NamedTuple):
    """A prompt of one kind, with the chat template applied."""

    name: str
    kind: str
    token_ids: list[int]


def read_rows(split: str, path: Path = PROMPTS) -> list[dict[str, Any]]:
    """Rows of a half ("tuning", "test"), one of each kind after the other."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["split"] == split:
            by_kind.setdefault(row["kind"], []).append(row)
    longest = max(map(len, by_kind.values()))
    return [some[i] for i in range(longest) for some in by_kind.values() if i < len(some)]


def make_prompt(row: dict[str, Any], tokenizer: Any, answer: Answer) -> Prompt:
    """The tokens before the answer that is measured: to the last of a chat's turns.

    Args:
        row: of a prompts file.
        tokenizer: of `transformers`.
        answer: the model's answer, token ids, to token ids: for a chat's earlier turns.
    """
    messages: list[dict[str, str]] = []
    users = row.get("turns") or [message["content"] for message in row["messages"]]
    for number, text in enumerate(users):
        messages.append({"role": "user", "content": text})
        token_ids = encode(messages, tokenizer)
        if number + 1 < len(users):
            output = tokenizer.decode(answer(token_ids), skip_special_tokens=True)
            messages.append({"role": "assistant", "content": output})
    return Prompt(row["id"], row["kind"], token_ids)


def encode(messages: list[dict[str, str]], tokenizer: Any) -> list[int]:
    """Messages in the model's chat template, or one after the other if it has none."""
    if getattr(tokenizer, "chat_template", None) is None:
        encoded = tokenizer("\n\n".join(message["content"] for message in messages))
    else:
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )
    return list(encoded["input_ids"])


def count_copied(prompt: Sequence[int], output: Sequence[int], window: int = COPY_WINDOW) -> int:
    """Positions of an output whose last `window` tokens are in the prompt in this order."""
    windows = {tuple(prompt[i : i + window]) for i in range(len(prompt) - window + 1)}
    text = [*prompt[len(prompt) - window + 1 :], *output]
    return sum(tuple(text[i : i + window]) in windows for i in range(len(output)))


def count_looping(prompt: Sequence[int], output: Sequence[int], window: int = LOOP_WINDOW) -> int:
    """Positions of an output whose last `window` tokens occurred earlier in the text."""
    text, seen, count = [*prompt, *output], set(), 0
    for end in range(window, len(text) + 1):
        last = tuple(text[end - window : end])
        count += end > len(prompt) and last in seen
        seen.add(last)
    return count


def describe_outputs(prompts: Sequence[Prompt], outputs: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Mean length, and shares of looping and of copied positions."""
    pairs = [(p.token_ids, output) for p, output in zip(prompts, outputs, strict=True)]
    total = sum(map(len, outputs))
    return {
        "prompts": len(prompts),
        "prompt_tokens": round(sum(len(p.token_ids) for p in prompts) / len(prompts), 1),
        "output_tokens": round(total / len(prompts), 1),
        "loops": round(sum(count_looping(*pair) for pair in pairs) / total, 3),
        "copied": round(sum(count_copied(*pair) for pair in pairs) / total, 3),
    }
