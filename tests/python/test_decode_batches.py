"""Many texts: those that wait for a row, and what is read of them together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import DynamicCache, StoppingCriteria

from lattice_bpd.decode import CustomGenerate, generate
from lattice_bpd.decode.loop import decode as loop_decode
from lattice_bpd.decode.loop import waiting
from lattice_bpd.decode.loop.engine import Engine
from lattice_bpd.verify import CausalLMTarget, Sampled
from planted_drafts import PlantedDrafts
from target_models import VOCAB, build_target
from test_call_limits import BOUNDARY, build
from test_decode_targets import WatchingHeads

NEW = 12


def prompts_of(count: int, seed: int = 0, head: tuple[int, ...] = ()) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*head, *rng.integers(1, VOCAB, rng.integers(1, 25)).tolist()] for _ in range(count)]


def plain(model: Any, prompt: list[int], new: int = NEW) -> list[int]:
    """The output of the model's own `generate`."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
        do_sample=False,
    )  # fmt: skip
    return output[0, len(prompt) :].tolist()


class Watch:
    """Texts of each step, and tokens of each call that reads prompts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.read: list[tuple[int, int]] = []
        step, read = Engine.step, CausalLMTarget.read_prompts

        def note(engine: Any) -> None:
            self.rows.append(len(engine.requests))
            step(engine)

        def count(target: Any, ids: torch.Tensor, *args: Any, **options: Any) -> Any:
            self.read.append(tuple(ids.shape))
            return read(target, ids, *args, **options)

        patch.setattr(Engine, "step", note)
        patch.setattr(CausalLMTarget, "read_prompts", count)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "roberta", "moshi"])
@pytest.mark.parametrize("limit", ["rows", "positions"])
def test_texts_wait_for_a_row(kind: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = build_target(kind), prompts_of(11)
    wanted = [plain(model, prompt) for prompt in prompts]
    if limit == "rows":
        monkeypatch.setattr(loop_decode, "_ROWS_ON_CPU", 3)
    else:
        monkeypatch.setattr(waiting, "_POSITIONS", 3 * (24 + NEW + 5 + 1))
    monkeypatch.setattr(waiting, "_READ", 40)
    drafters = [PlantedDrafts(own[: number % 9], VOCAB) for number, own in enumerate(wanted)]
    for drafter in drafters:
        drafter.max_nodes = 5
    generate(model, prompts[:2], "greedy", max_new_tokens=2)  # measures what the model can do
    watch = Watch(monkeypatch)
    results = generate(model, prompts, drafters, max_new_tokens=NEW)
    assert [one.token_ids for one in results] == wanted
    assert max(watch.rows) <= (3 if limit == "rows" else 6)
    assert len(watch.read) > 3
    for one in results:
        assert one.stats.target_calls == 1 + len(one.stats.accept_lengths)
    rule = Sampled(temperature=0.9, seed=5)
    sampled = generate(model, prompts, "greedy", acceptance=rule, max_new_tokens=NEW)
    assert any(one.token_ids != own for one, own in zip(sampled, wanted, strict=True))
    monkeypatch.undo()
    together = generate(model, prompts, "greedy", acceptance=rule, max_new_tokens=NEW)
    assert [one.token_ids for one in sampled] == [one.token_ids for one in together]


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_system_message_is_read_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, head = build_target(kind), tuple(range(20, 60))
    prompts = [*prompts_of(5, 1, head), [9, 8, 7]]
    wanted = [plain(model, prompt) for prompt in prompts]
    monkeypatch.setattr(waiting, "_READ", 45)
    generate(model, prompts[:2], "greedy", max_new_tokens=2)
    watch = Watch(monkeypatch)
    results = generate(model, prompts, max_new_tokens=NEW)
    assert [one.token_ids for one in results] == wanted
    is_windowed = CausalLMTarget(model).sliding_window is not None  # longer ones are read whole
    if not is_windowed:
        assert sum(rows * size for rows, size in watch.read) < 2 * len(head) + 5 * 25


def test_one_prompt_of_several_samples_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = build_target("llama"), prompts_of(1, 4, tuple(range(2, 30)))[0]
    rule = Sampled(temperature=0.9, seed=list(range(8)))
    one = Sampled(temperature=0.9, seed=5)
    generate(model, [[3], [4]], "greedy", max_new_tokens=2)  # measures what the model can do
    wanted = generate(model, [prompt], "greedy", acceptance=one, max_new_tokens=NEW)
    watch = Watch(monkeypatch)
    results = generate(model, [prompt] * 8, "greedy", acceptance=rule, max_new_tokens=NEW)
    assert watch.read == [(1, len(prompt)), (7, 1)]
    assert results[5].token_ids == wanted[0].token_ids
    assert len({tuple(one.token_ids) for one in results}) > 3


def test_texts_of_two_kinds_begin_as_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a kind are copied from the row of one of theirs, wherever it is."""
    model, heads = build_target("llama"), (tuple(range(2, 40)), tuple(range(45, 7, -1)))
    prompts = [prompt for head in heads for prompt in prompts_of(3, 6, head)]
    prompts = [[*prompt, number] for number, prompt in enumerate(prompts, 1)]
    wanted = [plain(model, prompt) for prompt in prompts]
    monkeypatch.setattr(waiting, "_READ", 45)
    generate(model, [[3], [4, 5]], "greedy", max_new_tokens=2)  # measures what the model can do
    watch = Watch(monkeypatch)
    results = generate(model, prompts, "greedy", max_new_tokens=NEW)
    assert [one.token_ids for one in results] == wanted
    read = sum(rows * size for rows, size in watch.read)
    assert read < sum(map(len, prompts)) - 3 * len(heads[0])


@pytest.mark.parametrize("layers", [(0,), (-1, 1)])
def test_heads_get_features_of_what_texts_share(
    layers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows hold keys and values only, so each text is read whole."""
    monkeypatch.setattr(waiting, "_READ", 45)
    model, prompts = build_target("llama"), prompts_of(4, 5, tuple(range(2, 40)))
    wanted = [plain(model, prompt) for prompt in prompts]
    texts = [prompt + new for prompt, new in zip(prompts, wanted, strict=True)]
    heads = WatchingHeads(texts, VOCAB, layers=layers)
    heads.seen = {}
    results = generate(model, prompts, "tree", heads=heads, max_new_tokens=NEW)
    assert [one.token_ids for one in results] == wanted
    for tokens, features in heads.seen.items():
        with torch.inference_mode():
            states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer + 1][0] for layer in layers], dim=-1)
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_texts_beyond_a_boundary_share_a_call() -> None:
    head = [3 + n % 50 for n in range(BOUNDARY + 4)]
    prompts = [[*head, *tail] for tail in ([5], [7, 9, 4], [8, 8])]
    wanted = [plain(build("longrope"), prompt) for prompt in prompts]
    results = generate(build("longrope"), prompts, "greedy", max_new_tokens=NEW)
    assert [one.token_ids for one in results] == wanted


def test_chats_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each continues its own cache, also where another one begins alike."""
    monkeypatch.setattr(loop_decode, "_ROWS_ON_CPU", 2)
    model = build_target("llama")
    head = tuple(range(4, 44))
    chats, caches = prompts_of(5, 3, head), [DynamicCache() for _ in range(5)]
    generate(model, chats[:2], "greedy", max_new_tokens=2)
    watch = Watch(monkeypatch)
    for turn in range(3):
        watch.read.clear()
        results = generate(model, chats, max_new_tokens=4, cache=caches)
        for chat, one in zip(chats, results, strict=True):
            assert one.token_ids == plain(model, chat, 4)
            assert (one.stats.cached_tokens > 0) == (turn > 0)
            chat += [*one.token_ids, 11 + turn, 12]
        if turn:
            assert [size for _, size in watch.read] == [3] * 5  # the last token of a turn too


def test_criteria_of_a_batch_see_all_of_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Ends(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            seen.append(len(input_ids))
            return torch.full((len(input_ids),), input_ids.shape[1] >= 9, device="cpu")

    monkeypatch.setattr(loop_decode, "_ROWS_ON_CPU", 2)
    monkeypatch.setattr(waiting, "_POSITIONS", 30)
    model, ids = build_target("llama"), torch.tensor([[5, 6], [9, 4], [7, 3]])
    options = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    wanted = model.generate(ids, stopping_criteria=[Ends()], **options)
    watch = Watch(monkeypatch)
    found = model.generate(
        ids, stopping_criteria=[Ends()], custom_generate=CustomGenerate(), **options
    )
    assert found.tolist() == wanted.tolist()
    assert set(seen) == {3}
    assert set(watch.rows) == {3}
