"""Prompts of files, and their text by a model's chat template.

    .jsonl, .json     an object or a string on each line, or an array of them; see `formats`
    any other name    plain text, a prompt per paragraph

Also compressed (.gz, .zst). A chat of several turns is a prompt at each turn of the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lattice_bpd._core import FormatError
from lattice_bpd.text_input import parse_json, read_text
from lattice_bpd.train.responses.formats import Chat, Message, to_chat
from lattice_bpd.train.text_files import read_pieces

_JSON = re.compile(r"\.(json|jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)
PROBE = "0content0"  # of a message, to find what a chat template puts around it
_PARTS = [{"type": "text", "text": PROBE}]
_APART = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
_SHOWN = 20  # reasons of a report, and lines of a file for each
_IN_ERROR = 3  # records that an error has


class Skipped(NamedTuple):
    """A record that is left out.

    Attributes:
        location: file and line.
        reason: why.
    """

    location: str
    reason: str

    @classmethod
    def of(cls, location: str, error: Exception) -> Skipped:
        """Because of an error, whose message may begin with the location."""
        return cls(location, str(error).removeprefix(f"{location}: "))


def read_chats(file: str, skipped: list[Skipped] | None = None) -> list[Chat]:
    """The conversations of a file.

    Args:
        file: a path, or "-" for plain text on standard input.
        skipped: receives lines that are not JSON and records without a prompt, which are left out
            while more than half of the file's records can be used. None: each is an error.

    Raises:
        OSError: the file cannot be read.
        FormatError: not the format that its name says, or records without a prompt.
        ValueError: no prompt in the file.
    """
    chats: list[Chat] = []
    if _JSON.search(file):
        wrong: list[Skipped] = []
        for record in _read_records(file):
            chats.append(record) if isinstance(record, Chat) else wrong.append(record)
        if problem := find_problem(wrong, len(chats), strict=skipped is None):
            raise FormatError(problem)
        if skipped is not None:
            skipped += wrong
    else:
        parts = []
        for piece in read_pieces(file, "paragraph"):
            parts.append(piece.text)
            if piece.ends:
                message = {"role": "user", "content": "".join(parts).strip()}
                chats.append(Chat([message], str(piece.location)))
                parts = []
    if not chats:
        raise ValueError(f"{file}: no prompt in the file; expected one or more")
    return chats


def _read_records(file: str) -> Iterator[Chat | Skipped]:
    """The conversations of a JSON array, of one object, or of JSON lines; or why there is none."""

    def read(location: str, record: Any, line: str | None = None) -> Chat | Skipped:
        try:
            if line is not None:
                record = parse_json(line, location, "an object on each line, or one array")
            return to_chat(record, location)
        except FormatError as error:
            return Skipped.of(location, error)

    text = read_text(file)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        if text.lstrip()[:1] == "[":
            parse_json(text, file, "an array of prompts")
    else:
        is_array = isinstance(whole, list) and not all(
            isinstance(one, dict) and "role" in one for one in whole
        )
        for number, record in enumerate(whole if is_array else [whole], 1):
            yield read(f"{file}, record {number}", record)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield read(f"{file}, line {number}", None, line)


def find_problem(skipped: Sequence[Skipped], usable: int, *, strict: bool = False) -> str:
    """The error of too many records that are left out: half of them, or any where `strict`."""
    if not skipped or (len(skipped) < usable and not strict):
        return ""
    first = "; ".join(f"{one.location}: {one.reason}" for one in skipped[:_IN_ERROR])
    count = len(skipped) + usable
    if strict or count == 1:
        return first
    return f"{len(skipped)} of {count} records cannot be used, expected fewer than half: {first}"


def describe_skipped(skipped: Sequence[Skipped], usable: int, what: str = "records") -> list[str]:
    """A sentence that names the records that are left out, if there are any."""
    if not skipped:
        return []
    reasons: dict[str, list[str]] = {}
    for one in skipped:
        reasons.setdefault(one.reason, []).append(Path(one.location).name)
    listed = _shorten([f"{reason}: {_shorten(where)}" for reason, where in reasons.items()])
    return [f"{len(skipped)} of {len(skipped) + usable} {what} are left out: {listed}."]


def _shorten(texts: list[str]) -> str:
    more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return "; ".join([*texts[:_SHOWN], *more])


def find_usable(
    tokenizer: Any, chats: Sequence[Chat], skipped: Sequence[Skipped] = (), *, chat: bool = True
) -> tuple[list[Chat], list[str]]:
    """The conversations whose prompts have a text, and sentences on all that is unexpected.

    Args:
        tokenizer: of transformers.
        chats: the conversations.
        skipped: records that have none.
        chat: see `format_prompt`.

    Raises:
        ValueError: the chat template refuses half of them or more.
    """
    usable: list[Chat] = []
    refused: list[Skipped] = []
    repeated = 0
    start = _find_start(tokenizer)
    for one in chats:
        try:
            texts = [format_prompt(tokenizer, prompt, chat=chat) for prompt in one.prompts()]
        except ValueError as error:
            refused.append(Skipped.of(one.location, error))
            continue
        usable.append(one)
        if texts[0].uses_template and start:
            text = _text_of(one.messages[0]).removeprefix(tokenizer.bos_token or "")
            repeated += text.lstrip().startswith(start)
    if problem := find_problem(refused, len(usable)):
        raise ValueError(f"{problem}; give what the application sends, or --no-chat")
    notes = describe_skipped([*skipped, *refused], len(usable))
    if repeated:
        notes.append(
            f"{repeated} prompts begin as the chat template does, which is applied to them "
            "nevertheless; if they have it already, give --no-chat."
        )
    return usable, notes


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


def format_prompt(tokenizer: Any, prompt: Chat, *, chat: bool = True) -> PromptText:
    """The text of a conversation up to the response.

    Args:
        tokenizer: of transformers.
        prompt: the last message is the user's, or a tool's.
        chat: whether to use the tokenizer's chat template, where it has one. Without it the text
            is that of the messages; one that begins with BOS gets no special tokens.

    Raises:
        ValueError: the chat template refuses the messages, or they have no text.
    """
    if chat and prompt.template and tokenizer.chat_template:
        return PromptText(_apply_template(tokenizer, prompt), False, True)
    text = join_texts(prompt.messages)
    if not text.strip():
        raise ValueError(f"{prompt.location}: the messages have no text; leave them out")
    bos = tokenizer.bos_token
    return PromptText(text, not (bos and text.startswith(bos)), False)


def encode_prompt(tokenizer: Any, prompt: Chat, *, chat: bool = True) -> list[int]:
    """Token ids of `format_prompt`, with its arguments and errors."""
    made = format_prompt(tokenizer, prompt, chat=chat)
    return encode_text(tokenizer, made.text, made.adds_special_tokens)


def encode_text(tokenizer: Any, text: str, adds_special_tokens: bool = False) -> list[int]:
    """Token ids of a text."""
    return list(tokenizer(text, add_special_tokens=adds_special_tokens)["input_ids"])


def format_response(tokenizer: Any, chat: Chat, prompt: PromptText) -> tuple[str, bool]:
    """The text of the response that ends a conversation, and whether it has an end.

    The text is "" if there is none. With tool calls or reasoning it is what the chat template adds
    to the prompt, with the end of a message.

    Raises:
        ValueError: the chat template does not give the whole response.
    """
    message = chat.messages[-1]
    text = _text_of(message) or str(message.get("refusal") or "")
    apart = [message[name] for name in _APART if message.get(name)]
    if not apart:
        return text, False
    whole = _apply_template(tokenizer, chat, is_prompt=False) if prompt.uses_template else ""
    added = whole.removeprefix(prompt.text)
    calls = [one for value in apart if not isinstance(value, str) for one in _calls_of(value)]
    parts = [text, *(value for value in apart if isinstance(value, str)), *calls]
    if added == whole or not all(part.strip() in added for part in parts):
        raise ValueError(
            f"{chat.location}: the model's chat template does not give a response's tool calls or "
            "reasoning; leave it out"
        )
    return added, True


def _calls_of(value: Any) -> list[str]:
    """The names of functions in tool calls, or in one call."""
    calls = value if isinstance(value, list) else [value]
    named = [one.get("function", one) for one in calls if isinstance(one, dict)]
    return [str(one.get("name", "")) for one in named if isinstance(one, dict)]


def join_texts(messages: Sequence[Message]) -> str:
    """The texts of messages, with empty lines between them."""
    return "\n\n".join(text for message in messages if (text := _text_of(message)))


def _text_of(message: Message) -> str:
    """The text of a message's content; "" for none."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n".join(part for part in parts if isinstance(part, str))


def _find_start(tokenizer: Any) -> str:
    """How a text begins that the chat template made, without BOS; "": as the message does."""
    try:
        text = _render(tokenizer, [{"role": "user", "content": PROBE}])
    except Exception:  # no template, or one that refuses texts
        return ""
    before = text.partition(PROBE)[0].removeprefix(tokenizer.bos_token or "").strip()
    marks = filter(before.startswith, tokenizer.get_added_vocab())
    return max(marks, key=len, default=before)


def _render(tokenizer: Any, messages: Sequence[Message], **options: Any) -> str:
    options = {"add_generation_prompt": True, **options}
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))


def _apply_template(tokenizer: Any, prompt: Chat, *, is_prompt: bool = True) -> str:
    """The text of messages by the chat template, which gets all that the conversation has.

    Contents are given as the template reads them, a text or a list of parts; arguments of tool
    calls as they are, or parsed where it refuses these.
    """
    options = {**prompt.options, "tools": prompt.tools, "add_generation_prompt": is_prompt}
    messages, last = prompt.messages, prompt.messages[-1].get("content")
    if any(isinstance(message.get("content"), list) for message in messages):
        messages = _fit_parts(messages, _reads(tokenizer, _PARTS), prompt.location)
    errors = []
    for variant in (messages, _parse_arguments(messages)):
        try:
            text = _render(tokenizer, variant, **options)
            is_read = not isinstance(last, str) or last.strip() in text
            if not is_read and not _reads(tokenizer, PROBE) and _reads(tokenizer, _PARTS):
                text = _render(tokenizer, _to_parts(variant), **options)
            return text
        except Exception as error:  # raise_exception of the template, or an error of jinja
            errors.append(error)
    reason = " ".join(str(errors[0]).split()) or type(errors[0]).__name__
    raise ValueError(
        f"{prompt.location}: the model's chat template refuses the messages ({reason[:200]})"
    ) from errors[0]


def _reads(tokenizer: Any, content: Any) -> bool:
    """Whether a chat template reads a content with the probe, and does not print it as data."""
    try:
        text = _render(tokenizer, [{"role": "user", "content": content}])
    except Exception:
        return False
    before, found, _ = text.partition(PROBE)
    return bool(found) and before[-1:] not in ("'", '"')


def _to_parts(messages: Sequence[Message]) -> list[Message]:
    """Messages whose texts are lists of parts."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _fit_parts(messages: Sequence[Message], reads_parts: bool, location: str) -> list[Message]:
    """Messages whose parts are objects, or are joined for a template that reads texts only."""
    fitted = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts = [
                {"type": "text", "text": part} if isinstance(part, str) else part
                for part in content
            ]
            kinds = [part.get("type") for part in parts if not isinstance(part.get("text"), str)]
            if kinds and not reads_parts:
                raise ValueError(
                    f"{location}: a content with {kinds[0]}, and the model's chat template reads "
                    "texts only"
                )
            message = {**message, "content": parts if reads_parts else _text_of(message)}
        fitted.append(message)
    return fitted


def _parse_arguments(messages: Sequence[Message]) -> list[Message]:
    """Messages whose tool calls have objects as arguments, in the place of JSON."""

    def parse(call: Any) -> Any:
        function: Any = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else None
        except ValueError:
            value = None
        return call if value is None else {**call, "function": {**function, "arguments": value}}

    return [
        {**message, "tool_calls": list(map(parse, message["tool_calls"]))}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]
