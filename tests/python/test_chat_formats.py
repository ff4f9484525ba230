"""Chats of data sets, logs and batch files: prompts are those of `apply_chat_template`."""

from __future__ import annotations

import copy
import gzip
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from build_runs import build, chat_tokenizer, make_folder, stored
from fake_openai import Answer, answer, serve
from lattice_bpd import FormatError
from lattice_bpd.build.job import BuildJob
from lattice_bpd.cli import main
from lattice_bpd.openai_server import OpenAIServer
from lattice_bpd.train.responses.collect import read_responses
from lattice_bpd.train.responses.formats import Chat
from lattice_bpd.train.responses.prompts import (
    Skipped,
    encode_prompt,
    find_usable,
    format_prompt,
    read_chats,
)
from lattice_bpd.train.responses.server import ServerResponses

# The styles of common templates; each has another beginning, and refuses or reads other things.
TEMPLATES = {
    "chatml": (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>"
        "\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) "
        "%}{{ raise_exception('roles must alternate user/assistant/user') }}{% endif %}"
        "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
    ),
    "tools": (
        "{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
        "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}"
        "{% if m.name %} {{ m.name }}{% endif %}{{ '\n' }}"
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>\n{% endif %}"
        "{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for p in m.content %}"
        "{{ p.text if p.type == 'text' else '<' + p.type + '>' }}{% endfor %}{% endif %}"
        "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} "
        "{{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if no_thinking %}<think></think>\n{% endif %}{% endif %}"
    ),
    "parts": (
        "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{% if p.type == 'text' %}"
        "{{ p.text }}{% endif %}{% endfor %}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def bytes_tokenizer(style: str | None) -> Any:
    """A tokenizer of bytes with the special tokens of the templates, which adds BOS."""
    marks = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "[INST]"]
    marks += ["<|end_header_id|>", "<|eot_id|>", "<|endoftext|>"]
    words = [*marks, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", add_bos_token=True,
        additional_special_tokens=marks[2:],
    )  # fmt: skip
    fast.chat_template = None if style is None else TEMPLATES[style]
    return fast


def template_ids(tokenizer: Any, messages: list[Any], **options: Any) -> list[int]:
    """By the template itself."""
    ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True, **options
    )["input_ids"]
    return ids


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def read(record: Any, tmp_path: Path) -> Chat:
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    (chat,) = read_chats(str(tmp_path / "a.jsonl"))
    return chat


NAMING = [
    "What does </s> mean?", "<|endoftext|>", "Explain <think> and <s>.", "a <|im_start|>user",
    "<s>[INST] Hi [/INST]", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
]  # fmt: skip


@pytest.mark.parametrize("style", ["chatml", "llama3", "mistral", "tools"])
@pytest.mark.parametrize("text", NAMING)
def test_messages_that_name_special_tokens(style: str, text: str, tmp_path: Path) -> None:
    """They are messages, whatever they name, also where they are the field of a record."""
    tokenizer = bytes_tokenizer(style)
    expected = template_ids(tokenizer, [user(text)])
    for record in ({"messages": [user(text)]}, {"prompt": text}, {"text": text}, text):
        assert encode_prompt(tokenizer, read(record, tmp_path)) == expected


@pytest.mark.parametrize("style", ["chatml", "llama3", "mistral"])
def test_plain_text_that_begins_as_the_template_does(style: str, tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer(style)
    whole = tokenizer.apply_chat_template(
        [user("Hi </s>")], tokenize=False, add_generation_prompt=True
    )
    short = whole[whole.index("[INST]" if style == "mistral" else "<|") :]  # without BOS
    texts = [whole, short, *(["<|im_start|>user\nHi"] if style == "chatml" else [])]
    if style != "mistral":
        with_system = [system("Other."), user("Hi")]
        texts.append(tokenizer.decode(template_ids(tokenizer, with_system)))
    texts = [text.replace("\n\n", "\n").strip() for text in texts]
    plain = [*NAMING[:4], "user", "system\nBe kind."]
    file = tmp_path / "a.txt"
    file.write_text("\n\n".join([*texts, *plain]))
    chats = read_chats(str(file))
    for text, chat in zip([*texts, *plain], chats, strict=True):
        assert encode_prompt(tokenizer, chat) == template_ids(tokenizer, [user(text)])
        ids = tokenizer(text.removeprefix("<s>"), add_special_tokens=False)["input_ids"]
        assert encode_prompt(tokenizer, chat, chat=False) == [tokenizer.bos_token_id, *ids]
    _, notes = find_usable(tokenizer, chats)
    assert f"{len(texts)} prompts begin as the chat template does, which is" in notes[0]
    assert find_usable(tokenizer, chats, chat=False)[1] == []
    if style != "chatml":  # which has no BOS
        made = format_prompt(tokenizer, Chat([user(whole)], "a"), chat=False)
        assert made == (whole, False, False)


TOOL_CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
]
AS_TEXT = copy.deepcopy(TOOL_CALLS)
AS_TEXT[0]["function"]["arguments"] = '{"city": "Rome"}'  # type: ignore[index]
TOOL_CHAT = [
    {"role": "developer", "content": "Be brief."},
    {**user("Weather in Rome?"), "name": "ann"},
    said(None, tool_calls=AS_TEXT),
    {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": '{"t": 21}'},
    {"role": "tool", "tool_call_id": "c2", "content": "sunny"},
    said("21 degrees.", reasoning_content="Rome is warm."),
    user([{"type": "text", "text": "And "}, {"type": "text", "text": "Oslo?"}]),
    said(None, refusal="No."),
    user([{"type": "image_url", "image_url": {"url": "x.png"}}, {"type": "text", "text": "This?"}]),
]


@pytest.mark.parametrize("as_text", [False, True])
def test_whole_messages_and_tools_go_to_the_template(as_text: bool, tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer("tools")
    messages: Any = json.dumps(TOOL_CHAT) if as_text else TOOL_CHAT
    tools: Any = json.dumps([WEATHER]) if as_text else [WEATHER]
    options = {"no_thinking": True}
    record = {"id": 7, "messages": messages, "tools": tools, "chat_template_kwargs": options}
    chat = read(record, tmp_path)
    assert chat.messages == TOOL_CHAT
    assert chat.prompt_ends() == [2, 5, 7, 9]
    for prompt, end in zip(chat.prompts(), chat.prompt_ends(), strict=True):
        expected = template_ids(tokenizer, TOOL_CHAT[:end], tools=[WEATHER], **options)
        assert encode_prompt(tokenizer, prompt) == expected
    assert "<image_url>This?" in tokenizer.decode(expected)


def test_arguments_are_parsed_where_the_template_refuses_text(tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer("tools")
    tokenizer.chat_template = TEMPLATES["tools"].replace(
        "{{ c.function.arguments | tojson }}",
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
    )
    chat = [user("Rome?"), said(None, tool_calls=AS_TEXT), {"role": "tool", "content": "21"}]
    parsed = [chat[0], said(None, tool_calls=TOOL_CALLS), chat[2]]
    expected = template_ids(tokenizer, parsed)
    assert encode_prompt(tokenizer, read({"messages": chat}, tmp_path)) == expected


PARTS = [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize("style", ["chatml", "llama3", "parts", "tools"])
def test_contents_are_given_as_the_template_reads_them(style: str, tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer(style)
    reads_parts, reads_texts = style in ("parts", "tools"), style != "parts"
    chat = read({"messages": [user(PARTS)]}, tmp_path)
    expected = template_ids(tokenizer, [user(PARTS if reads_parts else "One\ntwo")])
    assert encode_prompt(tokenizer, chat) == expected
    text = user("Hi" if reads_texts else [{"type": "text", "text": "Hi"}])
    expected = template_ids(tokenizer, [text])
    assert encode_prompt(tokenizer, read("Hi", tmp_path)) == expected


ASK, SAY = [user("Hi")], [said("Hello")]
BRIEF = system("Be brief.")
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
]}  # fmt: skip
RECORDS: list[tuple[Any, list[Any]]] = [
    ({"prompt": ASK, "completion": SAY}, ASK + SAY),
    ({"prompt": json.dumps(ASK), "completion": json.dumps(SAY)}, ASK + SAY),
    ({"prompt": "Hi", "completion": "Hello"}, ASK + SAY),
    ({"prompt": ASK, "completion": SAY[0], "label": True}, ASK + SAY),
    ({"prompt": [BRIEF, *ASK], "chosen": SAY, "rejected": [said("No")]}, [BRIEF, *ASK, *SAY]),
    ({"prompt": "Hi", "chosen": "Hello", "rejected": "No"}, ASK + SAY),
    ({"prompt": "Hi", "chosen": ASK + SAY, "rejected": ASK, "score_chosen": 0.5}, ASK + SAY),
    ({"chosen": ASK + SAY, "rejected": [*ASK, said("No")]}, ASK + SAY),
    ({"chosen": "\n\nHuman: Hi\n\nAssistant: Hello", "rejected": "\n\nHuman: Hi"}, ASK + SAY),
    ({"instruction": "Sum", "input": "1 2", "output": "3"}, [user("Sum\n\n1 2"), said("3")]),
    ({"instruction": "Hi", "input": "", "output": "Hello", "text": "Below .."}, ASK + SAY),
    (
        {"instruction": "b", "output": "c", "history": [["a", "x"]], "system": "Be brief."},
        [BRIEF, user("a"), said("x"), user("b"), said("c")],
    ),
    (
        {"instruction": "Who?", "context": "It is Al.", "response": "Al", "category": "qa"},
        [user("Who?\n\nIt is Al."), said("Al")],
    ),
    ({"question": "Hi", "answer": "Hello"}, ASK + SAY),
    ({"system_prompt": "Be brief.", "question": "Hi", "response": "Hello"}, [BRIEF, *ASK, *SAY]),
    ({"system_prompt": "", "query": "Hi", "response": "Hello", "text": None}, ASK + SAY),
    ({"system": "Be brief.", "messages": ASK}, [BRIEF, *ASK]),
    ({"system": [{"type": "text", "text": "Be"}], "messages": ASK},
     [system([{"type": "text", "text": "Be"}]), *ASK]),
    ({"system": "unused", "messages": [BRIEF, *ASK]}, [BRIEF, *ASK]),
    ({"messages": {"role": ["user", "assistant"], "content": ["Hi", "Hello"]}}, ASK + SAY),
    ({"messages": ASK, "response": {"choices": [{"message": SAY[0]}]}}, ASK + SAY),
    (
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "m", "messages": [BRIEF, *ASK], "max_tokens": 9}},
        [BRIEF, *ASK],
    ),
    ({"input": "Hi", "system": "Be brief.", "output": "Hello"}, [BRIEF, *ASK, *SAY]),
    ({"request": {"messages": ASK}, "response": {"body": {"choices": [{"message": SAY[0]}]}}},
     ASK + SAY),
    (
        {"conversations": [
            {"from": "system", "value": "Be brief."}, {"from": "human", "value": "Rome?"},
            {"from": "function_call",
             "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
            {"from": "observation", "value": "21"}, {"from": "gpt", "value": "Warm", "weight": 1}]},
        [BRIEF, user("Rome?"), CALL, {"role": "tool", "content": "21"}, said("Warm", weight=1)],
    ),
    (
        {"conversations": [{"from": "human", "value": "Hi"}],
         "chosen": {"from": "gpt", "value": "Hello"}, "rejected": {"from": "gpt", "value": "No"}},
        ASK + SAY,
    ),
    ([BRIEF, *ASK], [BRIEF, *ASK]),
    ({"prompt": "[]"}, [user("[]")]),
    ({"prompt": '["a"]', "completion": 7, "meta": [1, {"a": None}]}, [user('["a"]')]),
    ({"messages": [said("Welcome"), *ASK]}, [said("Welcome"), *ASK]),
]  # fmt: skip


def test_formats_of_data_sets(tmp_path: Path) -> None:
    records = [record for record, _ in RECORDS]
    text = "\r\n\r\n".join(json.dumps(one, ensure_ascii=False) for one in records)
    for name, data in (
        ("a.jsonl", b"\xef\xbb\xbf" + text.encode()),
        ("b.jsonl.gz", gzip.compress(text.encode())),
        ("c.json", json.dumps(records).encode()),
    ):
        (tmp_path / name).write_bytes(data)
        chats = read_chats(str(tmp_path / name))
        for chat, (record, expected) in zip(chats, RECORDS, strict=True):
            assert chat.messages == expected, record
    (tmp_path / "d.json").write_text(json.dumps(ASK + SAY))  # one conversation
    assert [chat.messages for chat in read_chats(str(tmp_path / "d.json"))] == [ASK + SAY]


def test_a_prompt_of_the_completions_api_is_sent_as_it_is(tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer("llama3")
    chat = read({"url": "/v1/completions", "body": {"prompt": "def f("}}, tmp_path)
    assert encode_prompt(tokenizer, chat) == tokenizer("def f(")["input_ids"]


def test_tools_of_other_apis(tmp_path: Path) -> None:
    for record in (
        {"messages": ASK, "functions": [WEATHER["function"]]},
        {"messages": ASK, "tools": WEATHER},
        {"url": "/v1/chat/completions", "body": {"messages": ASK, "tools": [WEATHER]}},
    ):
        assert read(record, tmp_path).tools == [WEATHER]
    for tools in ([], "[]", None, ["search"], "search"):
        assert read({"messages": ASK, "tools": tools}, tmp_path).tools is None


WRONG: list[tuple[Any, str]] = [
    ({"title": "x"}, "no prompt in an object with title"),
    ({"messages": SAY}, "no prompt in messages; expected a message of the user"),
    ({"messages": [user(None)]}, "a message .*; expected a text as its content"),
    ({"messages": [user(7)]}, "expected its role and a text as content"),
    ({"messages": "Hi there"}, "messages is the text 'Hi there'; expected a list of messages"),
    ({"chosen": "Hello", "rejected": "No"}, "chosen is a text without its prompt"),
    ({"messages": ASK, "tools": "[{"}, "tools is '.{'; expected a list of tools"),
    ({"body": {"prompt": [1, 2]}}, "prompt is a list; expected text"),
    ({"prompt": "\ud83d"}, "unpaired surrogate"),
    (7, "no prompt in 7"),
    ({"conversations": [{"from": "gpt", "value": "x"}], "system": "y"}, "no prompt in conv"),
    ({"input": ASK}, "input is that of OpenAI's Responses API; expected messages"),
    ({"input": "Hi", "instructions": "Be brief."}, "input is that of OpenAI's Responses API"),
    ({"body": {"input": "Hi", "tools": [WEATHER["function"]]}}, "OpenAI's Responses API"),
    ({"messages": [*ASK, {"type": "function_call", "name": "f"}]}, "expected its role and a text"),
    ({"messages": [user([{"type": "input_text", "text": "Hi"}])]}, 'with parts of type "text"'),
    ({"messages": [user([{"type": [], "text": 7}, 7])]}, "expected its role and a text"),
    ({"messages": json.dumps([user("\ud83d")])}, "unpaired surrogate"),
    ({"messages": ASK, "system": [7]}, "expected its role and a text"),
    ({"messages": "[]"}, "messages is the text"),
    ({"messages": [None]}, r"messages is '\[None\]'"),
    ({"instruction": "Hi", "history": [["a", 7]]}, "expected its role and a text"),
]


@pytest.mark.parametrize(("record", "reason"), WRONG)
def test_records_without_a_prompt_are_left_out_and_named(
    record: Any, reason: str, tmp_path: Path
) -> None:
    for name in ("a.jsonl", "a.json"):
        records = ["Hi", "Who?", record]
        lines = "\n".join(map(json.dumps, records))
        (tmp_path / name).write_text(lines if name == "a.jsonl" else json.dumps(records))
        file, skipped = str(tmp_path / name), list[Skipped]()
        where = f"{file}, {'line' if name == 'a.jsonl' else 'record'} 3"
        assert len(read_chats(file, skipped)) == 2
        assert [one.location for one in skipped] == [where]
        with pytest.raises(FormatError, match=f"{where}: .*{reason}"):
            read_chats(file)
        (tmp_path / name).write_text(json.dumps(records[1:] + records[2:]))
        with pytest.raises(FormatError, match=f"2 of 3 records cannot be used.*{reason}"):
            read_chats(file, [])


def test_lines_that_are_not_json_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('"Hi"\n{"messages": [\n"Who?"\n')
    skipped: list[Skipped] = []
    assert len(read_chats(str(tmp_path / "log.jsonl"), skipped)) == 2
    assert skipped[0].location.endswith("log.jsonl, line 2")


def test_a_build_goes_on_without_what_the_template_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its prompts are those of the template, and others are counted and named."""
    folder = make_folder(tmp_path)
    tokenizer = chat_tokenizer()
    good: list[Any] = [[user(f"Hi w{n}")] for n in range(10, 40)]
    bad = [[system("Be"), user("Hi")], SAY]
    records = [*good[:5], bad[0], *good[5:], bad[1]]
    lines = [json.dumps({"messages": one}) for one in records]
    (folder / "log.jsonl").write_text("\n".join([*lines, "{", ""]))
    command = ["build", str(folder / "model"), "--prompts", str(folder / "log.jsonl"), "-o",
               str(folder / "out"), "--max-new-tokens", "12"]  # fmt: skip
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "3 of 33 records are left out: " in out
    assert "expected a message of the user: log.jsonl, line 32" in out
    assert "expected an object on each line, or one array: log.jsonl, line 33" in out
    assert "refuses the messages (no system): log.jsonl, line 6" in out
    assert "3 of 33 records are left out" in (folder / "out" / "README.md").read_text()
    prompts = sorted(json.loads(line)["prompt"] for line in stored(folder))
    assert prompts == sorted(template_ids(tokenizer, one) for one in good)
    assert main([*command, "--dry-run"]) == 0
    assert "3 of 33 records are left out: " in capsys.readouterr().out
    (folder / "log.jsonl").write_text("\n".join(lines[:3] + lines[5:6] * 3))
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "3 of 6 records cannot be used" in line
    assert "log.jsonl, line 4: the model's chat template refuses the messages" in line
    assert "--no-chat" in line
    (folder / "log.jsonl").write_text("\n".join(lines[:2] + lines[5:6]))
    assert main(command) == 2
    assert "found 2 prompts; expected 3 or more" in capsys.readouterr().err


def test_turns_without_a_response_and_a_template_that_refuses_two_in_a_row(tmp_path: Path) -> None:
    """The target's own response is between them, so nothing is refused."""
    tokenizer = bytes_tokenizer("mistral")
    chats = [read({"turns": ["Hi", "Who?"]}, tmp_path), read({"messages": ASK + ASK}, tmp_path)]
    usable, notes = find_usable(tokenizer, chats)
    assert (len(usable), notes) == (2, [])
    own = ["Al"]
    prompts = list(chats[0].prompts(own))
    expected = template_ids(tokenizer, [user("Hi"), said("Al"), user("Who?")])
    assert encode_prompt(tokenizer, prompts[1]) == expected


def test_responses_with_tool_calls_and_reasoning(tmp_path: Path) -> None:
    """Their tokens are what the template adds to the prompt, to the end of the turn."""
    tokenizer = bytes_tokenizer("tools")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = read({"messages": TOOL_CHAT[:6], "tools": [WEATHER]}, tmp_path)
    skipped: list[Skipped] = []
    found = read_responses(tokenizer, [chat], stop_token_ids={end}, skipped=skipped)
    assert skipped == []
    for exchange, turn in zip(found, (2, 5), strict=True):
        assert exchange.prompt == template_ids(tokenizer, TOOL_CHAT[:turn], tools=[WEATHER])
        whole = tokenizer.apply_chat_template(
            TOOL_CHAT[: turn + 1], tools=[WEATHER], tokenize=False
        ).rstrip("\n")
        ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
        assert [*exchange.prompt, *exchange.response] == ids
    refusal = read({"messages": [*ASK, said(None, refusal="No.")]}, tmp_path)
    (exchange,) = read_responses(tokenizer, [refusal], stop_token_ids={end})
    assert tokenizer.decode(exchange.response) == "No.<|im_end|>"
    naming = read({"messages": [*ASK, said("It is <|im_end|> here.")]}, tmp_path)
    (exchange,) = read_responses(tokenizer, [naming], stop_token_ids={end})
    assert tokenizer.decode(exchange.response) == "It is <|im_end|> here.<|im_end|>"
    tokenizer.chat_template = TEMPLATES["llama3"]  # which has no tool calls
    assert read_responses(tokenizer, [chat], skipped=skipped)[1:] == []
    assert "does not give a response's tool calls or reasoning" in skipped[0].reason


def test_a_log_with_responses_of_other_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path)
    records: list[Any] = [{"messages": [user(f"w{n}"), said("w40 w41 w42")]} for n in range(10, 30)]
    records[7]["messages"][1] = said(None, tool_calls=TOOL_CALLS)
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert main(["build", str(folder / "model"), "--responses", str(folder / "log.jsonl"), "-o",
                 str(folder / "out")]) == 0  # fmt: skip
    assert "1 of 20 responses are left out: " in capsys.readouterr().out


def test_a_server_gets_the_text_of_the_template(tmp_path: Path) -> None:
    folder, tokenizer = make_folder(tmp_path), bytes_tokenizer("tools")
    options = {"no_thinking": True}
    records = [{"messages": [user(f"Hi {n}")], "tools": [WEATHER]} for n in range(2)]
    records += [{"messages": [user("Hi")], "chat_template_kwargs": options}, {"prompt": "<s> Hi"}]
    prompts: list[str] = []
    lock = threading.Lock()

    def respond(path: str, body: dict[str, Any]) -> Answer:
        assert path == "/v1/completions"
        with lock:
            prompts.append(body["prompt"])
        return answer(["w20 w21"], None, chat=False, finish="stop")

    chats = [read(record, folder) for record in records]
    made = [tokenizer.decode(encode_prompt(tokenizer, chat)) for chat in chats]
    assert "weather" in made[0]
    assert "<think></think>" in made[2]
    with serve(respond) as url:
        for chat, text in ((True, made), (False, ["Hi 0", "Hi 1", "Hi", " Hi"])):  # without BOS
            server = ServerResponses(OpenAIServer(url), tokenizer, chat=chat)
            assert len(list(server.generate([(one, 9) for one in chats], 9))) == 4
            assert sorted(prompts) == sorted(text)
            prompts.clear()


def test_chat_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message is a message, whatever it names."""
    folder = make_folder(tmp_path)
    text, prompts = "<user> Hi <|end|> <assistant>", list[list[int]]()
    (folder / "message.txt").write_text(text)
    for options in (["--chat", text], ["--chat", "--prompt-file", str(folder / "message.txt")]):
        command = ["generate", str(folder / "model"), *options, "--max-new-tokens", "3"]
        note_prompts(prompts, lambda command=command: main(command))
    assert prompts == [template_ids(chat_tokenizer(), [user(text)])] * 2


def note_prompts(prompts: list[list[int]], run: Callable[[], int]) -> None:
    """Runs a command that decodes, and notes the token ids of its prompt."""
    from lattice_bpd import decode

    real = decode.generate

    def generate(model: Any, ids: list[int], *args: Any, **options: Any) -> Any:
        prompts.append(ids)
        return real(model, ids, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decode, "generate", generate)
        assert run() == 0


def test_kept_responses_of_earlier_builds_are_used(tmp_path: Path) -> None:
    """Prompts of plain chats have the tokens that they had, so nothing is generated again."""
    folder = make_folder(tmp_path)
    assert build(folder) == 0
    before = stored(folder)
    chats = BuildJob(folder / "out", (str(folder / "prompts.json"),)).chats
    rows = [{"messages": chat.messages, "source": "a"} for chat in chats]
    (folder / "prompts.json").write_text(json.dumps(rows))
    assert build(folder) == 0
    assert stored(folder) == before
