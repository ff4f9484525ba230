"""Conversations in the records of data sets, logs and batch files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lattice_bpd._core import FormatError

Message = dict[str, Any]

# The fields that a record may have, see docs/build.md. The first of these that is not empty has the
# conversation, or the user's message, and with it the fields whose text continues the message.
_PROMPTS: dict[str, tuple[str, ...]] = {
    "messages": (), "conversations": (), "conversation": (), "turns": (), "prompt": (),
    "instruction": ("input", "context"), "question": ("context",), "query": (), "problem": (),
    "input": (), "chosen": (), "text": (),
}  # fmt: skip
# The first of these has the response, unless the conversation ends with one.
_RESPONSES = ("chosen", "completion", "response", "output", "answer", "solution")
_SYSTEM = ("system", "system_prompt")
_TOOLS = ("tools", "functions")
_REQUEST = ("body", "request")  # of a batch file or a log: the record is in it
_NEVER_TEXT = ("messages", "conversations", "conversation")

_ALIASES = {
    "human": "user", "prompter": "user", "gpt": "assistant", "chatgpt": "assistant",
    "bot": "assistant", "model": "assistant", "bard": "assistant", "bing": "assistant",
}  # fmt: skip
_FROM = {
    **_ALIASES, "function": "tool", "observation": "tool", "tool": "tool", "user": "user",
    "assistant": "assistant", "system": "system", "developer": "developer", "ipython": "ipython",
}  # fmt: skip
_ANSWERED = ("user", "tool", "function", "ipython", "observation")  # roles that get a response
_STAND_IN = "..."  # for a response that is not known yet
_OTHER_PARTS = ("input_text", "output_text")  # types of contents, of OpenAI's Responses API
_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant):")


@dataclass
class Chat:
    """A conversation.

    Attributes:
        messages: as chat templates take them, with all fields that the record has; the last one may
            be a response.
        location: where it was read, for messages.
        tools: for the chat template; None: none.
        options: of the chat template, such as enable_thinking.
        template: whether the chat template is applied.
    """

    messages: list[Message]
    location: str = ""
    tools: list[Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    template: bool = True

    def prompt_ends(self) -> list[int]:
        """For each prompt the number of messages up to and including it."""
        roles = [message["role"] for message in self.messages]
        ends, is_open = [], False
        for number, role in enumerate(roles, 1):
            later = roles[number:]
            is_open = role in _ANSWERED or (is_open and role != "assistant")
            turn = next((one for one in later if one in (*_ANSWERED, "assistant")), "")
            is_last = later[:1] in ([], ["assistant"])
            if (is_open and is_last) or (role in _ANSWERED and turn == "user"):
                ends.append(number)
        return ends

    def up_to(self, end: int) -> Chat:
        """The conversation of the first `end` messages."""
        return replace(self, messages=self.messages[:end])

    def prompts(self, own: Sequence[str] | None = None) -> Iterator[Chat]:
        """The conversation up to each prompt.

        Args:
            own: the target's responses, for prompts without one; the caller appends that to a
                prompt before it takes the next one. None: a stand-in.
        """
        history: list[Message] = []
        for first, end in itertools.pairwise([0, *self.prompt_ends()]):
            history += self.messages[first:end]
            yield replace(self, messages=list(history))
            if end < len(self.messages) and self.messages[end]["role"] != "assistant":
                text = _STAND_IN if own is None else own[-1]
                history.append({"role": "assistant", "content": text})


def to_chat(record: Any, location: str) -> Chat:
    """The conversation of a record.

    Raises:
        FormatError: it has none, or one that is no text; the message begins with `location`.
    """
    try:
        json.dumps(record, ensure_ascii=False).encode()
        chat = _read(record, location)
        json.dumps([chat.messages, chat.tools, chat.options], ensure_ascii=False).encode()
    except (FormatError, RecursionError) as error:
        raise FormatError(f"{location}: {error}") from None
    except UnicodeEncodeError as error:
        raise FormatError(
            f"{location}: a string has the unpaired surrogate {error.object[error.start]!r}, which "
            "is no text; remove it, or write the pair"
        ) from None
    return chat


def _read(record: Any, location: str) -> Chat:
    """`to_chat`, with errors that have no location."""
    if isinstance(record, str):
        return Chat([{"role": "user", "content": record}], location)
    given = {"messages": record} if isinstance(record, list) else record
    found: dict[str, Any] = given if isinstance(given, dict) else {}
    request: Any = next((found[name] for name in _REQUEST if found.get(name)), None)
    is_request = isinstance(request, dict) and not any(map(found.get, _PROMPTS))
    if is_request:
        found = {"response": found.get("response"), **request}
    name = next((name for name in _PROMPTS if found.get(name)), None)
    if name is None:
        what = f"an object with {', '.join(map(str, found))}" if found else repr(record)[:60]
        raise FormatError(
            f"no prompt in {what}; expected a string, or an object with messages (role, content), "
            f"conversations (from, value), or one of {', '.join(list(_PROMPTS)[3:])}"
        )
    if is_request and name == "prompt":  # of /v1/completions
        if not isinstance(found[name], str):
            raise FormatError(f"prompt is a {type(found[name]).__name__}; expected text")
        messages = [{"role": "user", "content": found[name]}]
        return Chat(_respond(messages, found, name), location, template=False)
    is_text = isinstance(found[name], str) and not any(map(found.get, ("instructions", "tools")))
    if name == "input" and not is_text:
        raise FormatError(
            "input is that of OpenAI's Responses API; expected messages (role, content), as its "
            "Chat Completions API takes them"
        )
    system = next((found[one] for one in _SYSTEM if found.get(one)), None)
    messages = _respond(_read_prompt(found, name), found, name)
    if isinstance(system, (str, list)) and messages[0]["role"] not in ("system", "developer"):
        messages = [_to_message({"role": "system", "content": system}), *messages]
    options = found.get("chat_template_kwargs")
    options = _parse(options) if isinstance(options, str) else options
    options = options if isinstance(options, dict) else {}
    chat = Chat(messages, location, _read_tools(found), options)
    if not chat.prompt_ends():
        raise FormatError(f"no prompt in {name}; expected a message of the user")
    return chat


def _read_prompt(found: dict[str, Any], name: str) -> list[Message]:
    """The messages of the field `name` and of those that continue it."""
    value = found[name]
    if name == "chosen" and isinstance(value, str) and len(parts := _TURN.split(value)) > 2:
        roles = {"Human": "user", "Assistant": "assistant"}
        texts = zip(parts[1::2], parts[2::2], strict=True)
        return [{"role": roles[role], "content": text.strip()} for role, text in texts]
    if name == "chosen" and isinstance(value, str):
        raise FormatError("chosen is a text without its prompt; expected it in prompt")
    if isinstance(value, str) and (more := _PROMPTS[name]):
        context = [found[one] for one in more if isinstance(found.get(one), str)]
        value = "\n\n".join([value, *(text for text in context if text.strip())])
    messages = _to_messages(value, name)
    if name.startswith("conversation"):
        while len(messages) > 1 and messages[0]["role"] == "assistant":  # a greeting
            del messages[0]
    if name == "instruction" and isinstance(found.get("history"), list):
        pairs = [one for one in found["history"] if isinstance(one, list) and len(one) == 2]
        turns = [turn for one in pairs for turn in zip(("user", "assistant"), one, strict=True)]
        earlier = [_to_message({"role": role, "content": text}) for role, text in turns]
        messages = [*earlier, *messages]
    return messages


def _respond(messages: list[Message], found: dict[str, Any], name: str) -> list[Message]:
    """Messages with the response of a record, if they lack one and it has one."""
    for one in _RESPONSES:
        value = found.get(one)
        while isinstance(value, dict) and isinstance(value.get("body"), dict):
            value = value["body"]
        if one == name or not value:
            continue
        try:
            response = _to_messages(value, one, "assistant")
        except FormatError:  # something else, such as a number
            continue
        if response[0]["role"] != "assistant" and Chat(response).prompt_ends():
            return response  # the prompt and the response
        return messages if messages[-1]["role"] == "assistant" else [*messages, *response]
    return messages


def _read_tools(found: dict[str, Any]) -> list[Any] | None:
    """The tools of a record; functions are put into tools, as templates take them."""
    name = next((name for name in _TOOLS if found.get(name)), None)
    if name is None:
        return None
    tools = _parse(found[name]) if isinstance(found[name], str) else found[name]
    tools = [tools] if isinstance(tools, dict) else tools
    if tools is None and found[name].lstrip()[:1] in ("[", "{"):
        raise FormatError(f"{name} is {found[name][:60]!r}; expected a list of tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return None  # something else, such as names for statistics
    return [
        {"type": "function", "function": tool} if name == "functions" and "name" in tool else tool
        for tool in tools
    ] or None


def _parse(text: str) -> Any:
    """The value of a text that is JSON of a list or an object; else None."""
    try:
        value = json.loads(text) if text.lstrip()[:1] in ("[", "{") else None
    except (ValueError, RecursionError):
        return None
    return value


def _to_messages(value: Any, name: str, role: str = "user") -> list[Message]:
    """The messages of a field; texts alone are messages of `role`."""
    if isinstance(value, str):
        parsed = _parse(value)
        items = parsed if isinstance(parsed, list) else [parsed]
        if items and all(isinstance(one, dict) and {"role", "from"} & set(one) for one in items):
            value = parsed
        elif name in _NEVER_TEXT:
            raise FormatError(f"{name} is the text {value[:60]!r}; expected a list of messages")
    if isinstance(value, dict):
        choices = value.get("choices")  # a response of the OpenAI API
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            value = choices[0].get("message", choices[0].get("text"))
        elif all(isinstance(column, list) for column in value.values()):
            rows = zip(*value.values(), strict=False)
            value = [dict(zip(value, row, strict=True)) for row in rows]
        value = [value] if isinstance(value, dict) else value
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        if role == "assistant":
            raise FormatError("several texts")
        return [{"role": role, "content": one} for one in value]
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return list(map(_to_message, value))
    raise FormatError(
        f"{name} is {str(value)[:60]!r}; expected a text, or messages with role and content"
    )


def _to_message(turn: Message) -> Message:
    """A message with "role", and "content" where it has one; all other fields are kept."""
    if "role" not in turn and turn.get("from") == "function_call":
        call = _parse(str(turn.get("value")))
        turn = {"role": "assistant", "content": turn.get("value")}
        if isinstance(call, dict) and "name" in call:
            function = {"name": call["name"], "arguments": call.get("arguments", {})}
            turn |= {"content": None, "tool_calls": [{"type": "function", "function": function}]}
    role = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value"))
    is_text = content is None or isinstance(content, str) or (
        isinstance(content, list) and all(isinstance(part, (str, dict)) for part in content)
        and not any(part.get("type") in _OTHER_PARTS for part in content if isinstance(part, dict))
    )  # fmt: skip
    if not isinstance(role, str) or not role or not is_text:
        raise FormatError(
            f"a message {json.dumps(turn)[:80]}; expected its role and a text as content "
            '(ShareGPT: from and value), with parts of type "text"'
        )
    known, lower = (_ALIASES if "role" in turn else _FROM), role.lower()
    if "role" not in turn and lower not in known:
        raise FormatError(f"role {role!r}; expected one of {', '.join(sorted(known))}")
    role = known.get(lower, lower if lower in _FROM else role)
    if role == "user" and content is None:
        raise FormatError(f"a message {json.dumps(turn)[:80]}; expected a text as its content")
    message = {key: value for key, value in turn.items() if key not in ("from", "value")}
    message["role"] = role
    if "content" in turn or content is not None:
        message["content"] = content
    return message
