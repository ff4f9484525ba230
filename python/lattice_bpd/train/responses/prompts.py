"""Prompts in the formats that people have: chats, instructions, plain text.

    .jsonl, .json     an object or a string on each line, or an array of them. Of an object the
                      first of these fields counts: `messages` (role, content), `conversations`
                      (ShareGPT: from, value), `turns` (the user's messages), `prompt`, `text`
    any other name    plain text, a prompt per paragraph

Also compressed (.gz, .zst). A chat of several turns is a prompt at each turn of the user. Beside
`prompt` or `text` an object may have the response, as `response` or `completion`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lattice_bpd._core import FormatError
from lattice_bpd.text_input import Meter, parse_json, read_text
from lattice_bpd.train.text_files import read_pieces

Message = dict[str, Any]

_FIELDS = ("messages", "conversations", "conversation", "turns", "prompt", "text")
_ROLES = {
    "human": "user", "prompter": "user", "gpt": "assistant", "chatgpt": "assistant",
    "bot": "assistant", "model": "assistant", "bard": "assistant", "bing": "assistant",
    "function": "tool", "observation": "tool", "developer": "system",
}  # fmt: skip
_KNOWN = ("assistant", "ipython", "system", "tool", "user")
_JSON = re.compile(r"\.(json|jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)


@dataclass
class Chat:
    """A conversation.

    Attributes:
        messages: "role" and "content" of each, as chat templates take them; the last one may be a
            response.
        location: where it was read, for messages.
    """

    messages: list[Message]
    location: str

    def prompt_ends(self) -> list[int]:
        """For each prompt the number of messages up to and including it."""
        roles = [message["role"] for message in self.messages]
        return [
            number
            for number in range(1, len(roles) + 1)
            if roles[number - 1] in ("user", "tool") and roles[number : number + 1] != ["tool"]
        ]


def read_chats(file: str) -> list[Chat]:
    """The conversations of a file.

    Args:
        file: a path, or "-" for plain text on standard input.

    Raises:
        OSError: the file cannot be read.
        FormatError: not the format that its name says, or a record without a prompt.
        ValueError: no prompt in the file.
    """
    if _JSON.search(file):
        chats = [_to_chat(record, location) for record, location in _read_records(file)]
    else:
        chats, parts = [], []
        for piece in read_pieces(file, "paragraph", "text", Meter()):
            parts.append(piece.text)
            if piece.ends:
                chats.append(_of_turns(["".join(parts).strip()], str(piece.location)))
                parts = []
    if not chats:
        raise ValueError(f"{file}: no prompt in the file; expected one or more")
    return chats


def _read_records(file: str) -> Iterator[tuple[Any, str]]:
    """The records of a JSON array, of one object, or of JSON lines."""
    text = read_text(file)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        if text.lstrip()[:1] == "[":
            parse_json(text, file, "an array of prompts")
    else:
        records = whole if isinstance(whole, list) else [whole]
        yield from ((record, f"{file}, record {n}") for n, record in enumerate(records, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            location = f"{file}, line {number}"
            yield parse_json(line, location, "an object on each line, or one array"), location


def _to_chat(record: Any, location: str) -> Chat:
    if isinstance(record, str):
        return _of_turns([record], location)
    found = record if isinstance(record, dict) else {}
    value = next((found[name] for name in _FIELDS if found.get(name)), None)
    if isinstance(value, str):
        chat = _of_turns([value], location)
        response = found.get("response", found.get("completion"))
        if isinstance(response, str):
            chat.messages.append({"role": "assistant", "content": response})
        return chat
    if isinstance(value, list) and all(isinstance(turn, str) for turn in value):
        return _of_turns(value, location)
    if isinstance(value, list) and all(isinstance(turn, dict) for turn in value):
        messages = [_to_message(turn, location) for turn in value]
        while messages and messages[0]["role"] == "assistant":  # a greeting
            del messages[0]
        chat = Chat(messages, location)
        if chat.prompt_ends():
            return chat
    what = f"an object with {', '.join(map(str, found))}" if found else repr(record)[:60]
    raise FormatError(
        f"{location}: no prompt in {what}; expected a string, or an object with messages (role, "
        "content) or conversations (from, value), at least one of them the user's, or with turns, "
        "prompt or text"
    )


def _of_turns(turns: Sequence[str], location: str) -> Chat:
    return Chat([{"role": "user", "content": turn} for turn in turns], location)


def _to_message(turn: Message, location: str) -> Message:
    """A message with "role" and "content"; text parts of the content are joined."""
    role = str(turn.get("role", turn.get("from", ""))).lower()
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        strings = [text for text in texts if isinstance(text, str)]
        content = "\n".join(strings) if len(strings) == len(texts) else None
    if not role or not isinstance(content, str):
        raise FormatError(
            f"{location}: a message {json.dumps(turn)[:80]}; expected its role and a text as "
            "content (ShareGPT: from and value)"
        )
    role = _ROLES.get(role, role)
    if role not in _KNOWN:
        raise FormatError(
            f"{location}: role {role!r}; expected one of {', '.join(sorted({*_KNOWN, *_ROLES}))}"
        )
    return {"role": role, "content": content}


class PromptText(NamedTuple):
    """The text of a prompt.

    Attributes:
        text: to encode.
        adds_special_tokens: whether the tokenizer adds its special tokens, such as BOS.
        uses_template: whether the chat template made it.
    """

    text: str
    adds_special_tokens: bool
    uses_template: bool


def format_prompt(
    tokenizer: Any, messages: Sequence[Message], location: str = "", *, chat: bool = True
) -> PromptText:
    """The text of a conversation up to the response.

    Args:
        tokenizer: of transformers.
        messages: the last one is the user's.
        location: of the conversation, for messages.
        chat: whether to use the tokenizer's chat template, where it has one. A single text that
            has the tokenizer's special tokens already is taken as it is.

    Raises:
        ValueError: the chat template refuses the messages.
    """
    text = "\n\n".join(str(message["content"]) for message in messages)
    is_formatted = len(messages) == 1 and any(
        token in text for token in tokenizer.all_special_tokens if len(token) > 3
    )
    if not chat or is_formatted or not tokenizer.chat_template:
        return PromptText(text, not is_formatted, False)
    return PromptText(_apply_template(tokenizer, list(messages), location), False, True)


def encode_prompt(
    tokenizer: Any, messages: Sequence[Message], location: str = "", *, chat: bool = True
) -> list[int]:
    """Token ids of `format_prompt`, with its arguments and errors."""
    prompt = format_prompt(tokenizer, messages, location, chat=chat)
    return list(tokenizer(prompt.text, add_special_tokens=prompt.adds_special_tokens)["input_ids"])


def _apply_template(tokenizer: Any, messages: list[Message], location: str) -> str:
    try:
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return text
    except Exception as error:  # raise_exception of the template, or an error of jinja
        if len(messages) > 1 and messages[0]["role"] == "system":  # some models have no such role
            first, second, *others = messages
            merged = {**second, "content": f"{first['content']}\n\n{second['content']}"}
            return _apply_template(tokenizer, [merged, *others], location)
        raise ValueError(
            f"{location}: the model's chat template refuses the messages ({error}); leave this "
            "chat out, or give --no-chat"
        ) from error
