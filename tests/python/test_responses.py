"""A target's own responses: against `model.generate`, prompt formats, storage."""

import copy
import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from build_runs import chat_tokenizer
from lattice_bpd import FormatError
from lattice_bpd.decode import DraftingModel, generate
from lattice_bpd.decode.drafters import NoDrafter
from lattice_bpd.decode.loop import engine as loop_engine
from lattice_bpd.decode.loop import waiting
from lattice_bpd.decode.loop.arguments import Options
from lattice_bpd.decode.loop.engine import Engine
from lattice_bpd.decode.loop.request import Request
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.train.responses.collect import Exchange, collect_responses, read_responses
from lattice_bpd.train.responses.formats import Chat
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.train.responses.prompts import encode_prompt, read_chats
from lattice_bpd.train.responses.store import ResponseStore
from lattice_bpd.verify import CausalLMTarget, Sampled
from lattice_bpd.verify.greedy import Verification
from target_models import VOCAB, build_target
from test_call_limits import LENGTHS, build, text_of

END = (5, 7, 11)
NEW = 20


def random_prompts(count: int = 9, longest: int = 40, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    return [rng.integers(12, VOCAB, length).tolist() for length in lengths]


def plain(model: Any, prompt: list[int], **options: Any) -> list[int]:
    """The output of the model's own `generate`."""
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": list(END), **options}
    output = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return output[0, len(prompt) :].tolist()


def responses_of(model: Any, prompts: list[list[int]], **options: Any) -> dict[int, list[int]]:
    options = {"stop_token_ids": END, **options}
    found = list(generate_responses(model, prompts, NEW, **options))
    assert len({one.prompt for one in found}) == len(found)
    return {one.prompt: one.token_ids for one in found}


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "gemma2", "roberta", "moshi", "llama4", "lfm2"]
)
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_responses_are_those_of_generate(
    kind: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_engine, "_GROWTH", 1)  # the cache grows often
    monkeypatch.setattr(waiting, "_READ", 50)
    model, prompts = build_target(kind), random_prompts()
    whole = [plain(model, prompt, eos_token_id=None) for prompt in prompts]
    ends = [whole[0][3], whole[1][7], whole[2][0]]
    expected = [plain(model, prompt, eos_token_id=ends) for prompt in prompts]
    assert len(set(map(len, expected))) > 1
    found = responses_of(model, prompts, stop_token_ids=ends, batch_size=batch_size)
    assert found == dict(enumerate(expected))


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_prompts_join_while_others_are_generated(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A next turn, longer or shorter than the prompts in progress, and in a full batch too."""
    monkeypatch.setattr(loop_engine, "_GROWTH", 1)
    monkeypatch.setattr(waiting, "_POSITIONS", 300)
    model = build_target("llama")
    prompts, turns = random_prompts(9, 60), random_prompts(3, 20, 1)
    by_length = sorted(range(9), key=lambda number: len(prompts[number]))
    ends = plain(model, prompts[by_length[-2]], eos_token_id=None)[2:3]
    order = []
    for one in generate_responses(model, prompts, NEW, stop_token_ids=ends, batch_size=batch_size):
        order.append(one.prompt)
        assert one.token_ids == plain(model, prompts[one.prompt], eos_token_id=ends)
        if turns and len(order) > 5:
            prompts.append(turns.pop())
    assert sorted(order) == list(range(12))
    assert batch_size == 64 or order.index(9) < order.index(by_length[-1])  # it did not wait


@pytest.mark.parametrize("kind", ["llama", "bert", "moshi", "gemma2", "minicpm3"])
@pytest.mark.parametrize("batch_size", [2, 64])
def test_what_prompts_share_is_read_once(
    kind: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first tokens of all, and the earlier turns of a conversation."""
    monkeypatch.setattr(waiting, "_READ", 30)
    model, read = build_target(kind), []
    list(generate_responses(model, [[3], [4]], 1))  # measures what the model can do
    read_prompts = CausalLMTarget.read_prompts

    def count(target: Any, ids: torch.Tensor, *args: Any, **options: Any) -> Any:
        read.append(tuple(ids.shape))
        return read_prompts(target, ids, *args, **options)

    step = Engine.step

    def compare(engine: Any) -> Any:
        """Before a step the keys of a row are those that the model computes of its whole text."""
        for row, one in enumerate(engine.requests if kind != "moshi" else ()):  # it has no mask
            target, ids = engine.model.target, torch.tensor([one.state.tokens[:-1]])
            cache = target.new_cache()
            target(ids, cache)
            layers = engine.cache.save(row, ids.shape[1])
            found = torch.cat([layer[0] for layer in layers])
            wanted = torch.cat([layer.keys for layer in cache.layers])
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
        step(engine)

    monkeypatch.setattr(Engine, "step", compare)
    monkeypatch.setattr(CausalLMTarget, "read_prompts", count)
    head, turns = list(range(20, 50)), random_prompts(3, 9, 1)
    new = [(1, 1 + len(turn)) for turn in turns]  # with the last token of the response before
    prompts = [head + tail for tail in random_prompts(8, 9, 2)]
    embed = model.get_output_embeddings()
    for number, ids, _, states, _ in generate_responses(
        model, prompts, 8, batch_size=batch_size, keep_states=True
    ):
        assert states is not None
        with torch.inference_mode():
            assert embed(states).argmax(dim=-1).tolist() == ids
        assert ids == plain(model, prompts[number], max_new_tokens=8, eos_token_id=None)
        if turns:
            prompts.append([*prompts[number], *ids, *turns.pop()])
    assert len(prompts) == 11
    rest = sum(len(prompt) - len(head) for prompt in prompts[:8])
    if CausalLMTarget(model).sliding_window is None:  # else prompts beyond it are read whole
        assert sum(rows * size for rows, size in read) < len(head) + 2 * rest + 3 * 10
        assert all(read.count(one) >= new.count(one) for one in new)


def test_a_start_of_the_last_text_that_ended() -> None:
    """Two end in the same step; the next prompt begins as that in row 1."""
    model = build_target("llama")
    one, other = random_prompts(2, 1, 5)[0] * 20, list(range(20, 45))
    prompts = [one, [*other, 3], [*other, 4, 9, 17]]
    found = list(generate_responses(model, prompts, NEW, stop_token_ids=(), batch_size=2))
    for response in found:
        expected = plain(model, prompts[response.prompt], eos_token_id=None)
        assert response.token_ids == expected
    assert len(found) == 3


def test_states_end_with_the_text() -> None:
    model = DraftingModel(build_target("llama"))
    engine = Engine(model, Options([], [], frozenset({7})), {}, keep_hidden=True)
    request = Request(DecodeState(model, [1], 1, None, 5, DecodeStats()), NoDrafter())
    states = torch.arange(6.0).reshape(3, 2)
    engine.append(request, Verification([4, 7, 9], 2, states[2], states=states))
    assert request.state.new_tokens == [4, 7]
    assert torch.equal(torch.cat(request.hidden), states[:2])


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_frequencies_that_a_longer_text_changes(kind: str) -> None:
    """Texts at one side of the boundary share calls, others do not."""
    texts = [text_of(kind, length) for length in LENGTHS]
    model = build(kind)
    for _ in range(2):
        found = list(generate_responses(model, [prompt for prompt, _ in texts], 8))
        assert {one.prompt: one.token_ids for one in found} == {
            number: wanted[:8] for number, (_, wanted) in enumerate(texts)
        }


def test_settings_of_the_generation_config_are_honored() -> None:
    model, prompts = copy.deepcopy(build_target("llama")), random_prompts()
    model.generation_config.repetition_penalty = 1.5
    model.generation_config.eos_token_id = list(END)
    expected = {number: plain(model, prompt) for number, prompt in enumerate(prompts)}
    assert responses_of(model, prompts, stop_token_ids=None, batch_size=4) == expected


def test_samples_do_not_depend_on_the_batch() -> None:
    model, prompts = build_target("llama"), random_prompts()
    rule = Sampled(temperature=0.8, top_p=0.9, seed=3)
    options: dict[str, Any] = {"stop_token_ids": END, "max_new_tokens": NEW}
    expected = {
        number: generate(model, prompt, "greedy", acceptance=rule, **options).token_ids
        for number, prompt in enumerate(prompts)
    }
    for size in (1, 4, 64):
        assert responses_of(model, prompts, acceptance=rule, batch_size=size) == expected


def test_responses_end_with_the_positions() -> None:
    model = build_target("llama")  # 96 positions
    prompts = [random_prompts(1, longest, longest)[0] for longest in (3, 90)]
    prompts = [*prompts, [9] * 90, [9] * 95, [9] * 96]
    found = {one.prompt: one for one in generate_responses(model, prompts, NEW)}
    assert sorted(found) == [0, 1, 2, 3]  # none for a prompt that fills them
    assert [len(found[number].token_ids) for number in (2, 3)] == [6, 1]
    assert [found[number].ended for number in (0, 2)] == [False, True]
    for number in found:
        size = len(found[number].token_ids)
        expected = plain(model, prompts[number], eos_token_id=None, max_new_tokens=size)
        assert found[number].token_ids == expected


def test_errors_of_generate_responses() -> None:
    model = build_target("llama")
    assert list(generate_responses(model, [], NEW)) == []
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        list(generate_responses(model, [[3]], 0))
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        list(generate_responses(model, [[3], []], NEW))
    with pytest.raises(ValueError, match="token id 64"):
        list(generate_responses(model, [[3], [64]], NEW))


def test_a_batch_that_lacks_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    model = build_target("llama")
    prompts = random_prompts(3)
    list(generate_responses(model, prompts, 2))
    message = r"no memory to generate responses .* 9 GiB.*; lower the batch size"
    for owner, name in ((Engine, "step"), (waiting.Waiting, "next")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lacks)
            with pytest.raises(MemoryError, match=message):
                list(generate_responses(model, prompts, 2))


def test_positions_of_a_batch_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits into 0.3 of 10 GB, of which torch holds 2, at 8 bytes a position."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 * 10**9, 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 10**9)
    cache: Any = SimpleNamespace(position_bytes=8)
    positions = waiting.count_positions(cache, torch.device("cuda"))
    assert positions == pytest.approx(3 * 10**9 // 8)
    assert waiting.count_rows(positions // 2, positions) == 2
    assert waiting.count_rows(positions * 2, positions) == 1


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Me"},
]
NAMES = {"system": "system", "user": "human", "assistant": "gpt"}
SHARE_GPT = [{"from": NAMES[one["role"]], "value": one["content"]} for one in CHAT]
PARTS = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in CHAT]
RECORDS = [
    {"messages": CHAT},
    {"conversations": SHARE_GPT, "id": 3},
    {"conversations": [{"from": "gpt", "value": "Welcome"}, *SHARE_GPT]},
    {"messages": PARTS},
    {"prompt": CHAT},
    {"turns": ["Hi", "Who?"], "category": "writing"},
    {"prompt": "Hi", "text": "unused"},
    {"text": "Hi"},
    {"messages": [], "prompt": "Hi"},
    "Hi",
]


@pytest.mark.parametrize("kind", ["jsonl", "array", "indented", "gz", "bom"])
def test_formats_of_prompts(kind: str, tmp_path: Path) -> None:
    lines = "\n\n".join(map(json.dumps, RECORDS)) + "\n"
    name = {"array": "a.json", "indented": "a.json", "gz": "a.jsonl.gz"}.get(kind, "a.jsonl")
    text = json.dumps(RECORDS, indent=2 if kind == "indented" else None)
    data = (lines if name != "a.json" else text).encode()
    data = gzip.compress(data) if kind == "gz" else b"\xef\xbb\xbf" * (kind == "bom") + data
    (tmp_path / name).write_bytes(data)
    chats = read_chats(str(tmp_path / name))
    turns = [{"role": "user", "content": text} for text in ("Hi", "Who?")]
    expected = [CHAT, CHAT, CHAT, PARTS, CHAT, turns, *[turns[:1]] * 4]
    assert [chat.messages for chat in chats] == expected
    assert [chat.prompt_ends() for chat in chats] == [[2, 4]] * 5 + [[1, 2]] + [[1]] * 4


def test_plain_text_and_one_object(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One\nprompt.\n\n \n\nAnother.\n")
    texts = [chat.messages[0]["content"] for chat in read_chats(str(tmp_path / "a.txt"))]
    assert texts == ["One\nprompt.", "Another."]
    (tmp_path / "b.json").write_text(json.dumps({"messages": CHAT}, indent=1))
    assert read_chats(str(tmp_path / "b.json"))[0].messages == CHAT


def test_responses_that_exist_already(tmp_path: Path) -> None:
    records = [{"messages": CHAT}, {"prompt": "Hi", "completion": "Hello"}, {"text": "Who?"}]
    (tmp_path / "a.json").write_text(json.dumps(records))
    chats = read_chats(str(tmp_path / "a.json"))
    del chats[0].messages[0]  # the system message
    found = read_responses(chat_tokenizer(), chats, stop_token_ids={9, 1})
    first = [2, 4, 3, 8, 2, 5, 3]
    assert found == [
        Exchange(0, [2, 4, 3], [8, 1]), Exchange(0, first, [0, 1]), Exchange(1, [2, 4, 3], [8, 1])
    ]  # fmt: skip
    assert read_responses(chat_tokenizer(), chats, max_positions=4)[1:] == [
        Exchange(1, [2, 4, 3], [8])
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"title": "Hi"}', "record 1: no prompt in an object with title"),
        ("a.jsonl", '"Hi"\n{"messages": [{"role": "user"}]}', "a.jsonl, line 2: a message"),
        ("a.json", '[{"conversations": [{"from": "humann", "value": "x"}]}]', "role 'humann'"),
        ("a.jsonl", '"Hi"\n7', "a.jsonl, line 2: no prompt in 7"),
        ("a.json", '["Hi", {"messages": [{"role": "assistant", "content": "x"}]}]', "record 2"),
        ("a.json", '["Hi"', "a.json: not JSON"),
        ("a.jsonl", "", "no prompt in the file"),
    ],
)
def test_errors_of_prompts(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_chats(str(tmp_path / name))


def test_the_chat_template_is_used_where_there_is_one() -> None:
    hi = [{"role": "user", "content": "Hi"}]
    assert encode_prompt(chat_tokenizer(), Chat(hi)) == [2, 4, 3]
    assert encode_prompt(chat_tokenizer(), Chat(hi), chat=False) == [4]
    assert encode_prompt(chat_tokenizer(None), Chat(hi)) == [4]
    with_system = Chat([{"role": "system", "content": "Be brief."}, *hi], "line 3")
    with pytest.raises(ValueError, match=r"line 3: the model's chat template refuses .*no system"):
        encode_prompt(chat_tokenizer(), with_system)


def test_responses_of_several_turns(tmp_path: Path) -> None:
    records = [{"turns": ["Hi", "Who?"]}, {"messages": CHAT[1:]}, {"prompt": "Who?"}]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, records)))
    model, tokenizer = build_target("llama"), chat_tokenizer()
    store = ResponseStore(tmp_path / "store.jsonl", model)
    found = collect_responses(model, tokenizer, read_chats(str(file)), NEW, store)
    first = plain(model, [2, 4, 3], eos_token_id=None)
    own = tokenizer(tokenizer.decode(first, skip_special_tokens=True))["input_ids"]
    prompts = [[2, 4, 3], [2, 4, 3, *own, 2, 5, 3], [2, 4, 3], [2, 4, 3, 8, 2, 5, 3], [2, 5, 3]]
    expected = [plain(model, prompt, eos_token_id=None) for prompt in prompts]
    assert found == [Exchange(*one) for one in zip([0, 0, 1, 1, 2], prompts, expected, strict=True)]


def test_a_store_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model, tokenizer = tmp_path / "store.jsonl", build_target("llama"), chat_tokenizer()
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(json.dumps(f"Hi w{number}") for number in range(10, 16)))
    chats = read_chats(str(file))
    options: dict[str, Any] = {"stop_token_ids": END}

    def collect(most: int = NEW) -> list[Exchange]:
        store = ResponseStore(path, model, "greedy")
        return collect_responses(model, tokenizer, chats, most, store, **options)

    expected = collect()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 9])  # a crash cut the last line
    calls: list[int] = []
    monkeypatch.setattr(
        "lattice_bpd.train.responses.collect.generate_responses",
        lambda model, prompts, *a, **k: (
            calls.append(len(prompts)) or generate_responses(model, prompts, *a, **k)
        ),
    )
    assert collect() == expected
    assert calls == [1]
    assert path.read_bytes() == whole
    shorter = collect(5)
    assert [one.response for one in shorter] == [one.response[:5] for one in expected]
    assert calls == [1, 0]
    # a longer limit generates again what no stop token ended
    ended = sum(one.response[-1] in END for one in expected)
    collect(NEW + 1)
    assert 0 < ended < 6
    assert calls == [1, 0, 6 - ended]
    other = ResponseStore(path, model, "sampled")
    assert other.get(expected[0].prompt, NEW) is None
    other = ResponseStore(path, build_target("gpt_neox"), "greedy")
    assert other.get(expected[0].prompt, NEW) is None


def test_a_store_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"a": 1}\n')
    with pytest.raises(FormatError, match="a, line 1: not a stored response"):
        ResponseStore(tmp_path / "a", build_target("llama"))
