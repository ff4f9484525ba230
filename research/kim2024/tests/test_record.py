"""Records on disk: contents, continuing after an interruption, damaged shards, full disks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

import torch

from blockwise_models import (
    POSITIONS,
    VOCAB,
    looping_text,
    model_of,
    plain_greedy,
    random_model,
    trained_model,
)  # fmt: skip
from lattice_bpd import FormatError
from lattice_bpd.build.call_costs import measure_costs
from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.decode.drafters.p_best import ArgmaxDrafter
from lattice_bpd_kim2024.record import write
from lattice_bpd_kim2024.record.files import load_manifest, read_record
from lattice_bpd_kim2024.record.heads import record_text, time_calls
from lattice_bpd_kim2024.record.write import Prompt, RecordOptions, write_record

OPTIONS = RecordOptions(top_k=6, max_new_tokens=11, texts_per_shard=4, batch_size=3)


def make_prompts(count: int = 10, length: int = 9) -> list[Prompt]:
    text = looping_text(500, seed=7).tolist()
    return [Prompt(text[7 * n : 7 * n + length + n % 3], f"p{n}", ("a", "b")) for n in range(count)]


def test_record_holds_greedy_outputs_and_candidates_of_the_heads(tmp_path):
    model, prompts = model_of("trained"), make_prompts()
    manifest = write_record(tmp_path, model, prompts, OPTIONS, task="cycle")
    assert manifest.complete
    assert [shard.texts for shard in manifest.shards] == [4, 4, 2]
    assert load_manifest(tmp_path) == manifest
    record = read_record(tmp_path)
    assert (len(record.texts), record.skipped) == (10, [])
    for prompt, text in zip(prompts, record.texts, strict=True):
        output = plain_greedy(model, list(prompt.token_ids), 11)
        assert text.output.tolist() == output
        assert (text.task, text.name, text.references) == ("cycle", prompt.name, ("a", "b"))
        assert (text.finish, text.limit) == ("length", 11)
        tokens = torch.tensor([[*prompt.token_ids, *output[:-1]]])
        before = len(prompt.token_ids) - 1
        with torch.inference_mode():
            heads = model.head_logits(model.hidden_states(tokens)[0, before:])  # (m, H, V)
            own = model.base(tokens).logits[0, before:]
        best = heads.topk(6).values.numpy()
        assert text.scores == pytest.approx(best, abs=1e-4)
        at = np.take_along_axis(heads.numpy(), text.token_ids.astype(np.int64), axis=-1)
        assert at == pytest.approx(text.scores, abs=1e-4)
        log_probs = torch.cat([own[:, None], heads], dim=1).log_softmax(-1)
        assert text.entropies == pytest.approx(
            -(log_probs.exp() * log_probs).sum(-1).numpy(), abs=1e-4
        )
        two = own.topk(2).values
        assert text.margins == pytest.approx((two[:, 0] - two[:, 1]).numpy(), abs=1e-4)


def test_record_continues_after_the_last_complete_shard(tmp_path, monkeypatch):
    model, prompts = model_of("trained"), make_prompts()
    whole = write_record(tmp_path / "whole", model, prompts, OPTIONS)
    calls = []
    real = write._record_batch

    def stop_later(model, batch, options, task):
        calls.append(len(batch))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(model, batch, options, task)

    monkeypatch.setattr(write, "_record_batch", stop_later)
    part = tmp_path / "part"
    with pytest.raises(KeyboardInterrupt):
        write_record(part, model, prompts, OPTIONS)
    assert [shard is None for shard in load_manifest(part).shards] == [False, True, True]
    assert len(read_with_warnings(part, 2).texts) == 4
    calls.clear()
    monkeypatch.setattr(write, "_record_batch", lambda *a: (calls.append(len(a[1])), real(*a))[1])
    assert write_record(part, model, prompts, OPTIONS) == whole
    assert write_record(part, model, prompts, OPTIONS) == whole  # everything is recorded
    assert sum(calls) == 6
    assert not list(part.glob(".*"))


def read_with_warnings(directory: Path, count: int):
    with pytest.warns(UserWarning, match="the shard is left out; run lattice-bpd record") as caught:
        record = read_record(directory)
    assert len(caught) == count
    return record


@pytest.mark.parametrize("damage", ["cut", "altered", "missing"])
def test_record_loses_only_the_damaged_shard_and_repairs_it(tmp_path, damage):
    model, prompts = model_of("trained"), make_prompts()
    whole = write_record(tmp_path, model, prompts, OPTIONS)
    shard = tmp_path / whole.shards[1].file
    data = shard.read_bytes()
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(data[:-100] if damage == "cut" else data[:300] + b"x" + data[301:])
    record = read_with_warnings(tmp_path, 1)
    assert record.skipped == [shard.name]
    assert [text.name for text in record.texts] == [f"p{n}" for n in (0, 1, 2, 3, 8, 9)]
    assert write_record(tmp_path, model, prompts, OPTIONS) == whole
    assert shard.read_bytes() == data


def test_record_without_an_intact_shard_or_manifest_is_an_error(tmp_path):
    whole = write_record(tmp_path, model_of("trained"), make_prompts(3), OPTIONS)
    (tmp_path / whole.shards[0].file).write_bytes(b"PAR1 no")
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(FormatError, match="none of its 1 shards"),
    ):
        read_record(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "lattice-bpd record", "version": 9}')
    with pytest.raises(FormatError, match="not the manifest of a record"):
        read_record(tmp_path)
    with pytest.raises(FileNotFoundError, match="expected the folder of a record"):
        read_record(tmp_path / "none")


def test_record_of_something_else_in_the_folder_is_refused(tmp_path):
    model, prompts = model_of("trained"), make_prompts(3)
    write_record(tmp_path, model, prompts, OPTIONS)
    other = RecordOptions(top_k=5, max_new_tokens=11, texts_per_shard=4)
    with pytest.raises(ValueError, match=r"record of something else \(top_k: 6 there, 5 now\)"):
        write_record(tmp_path, model, prompts, other)
    with pytest.raises(ValueError, match=r"prompts_fingerprint: .* there"):
        write_record(tmp_path, model, make_prompts(3, length=10), OPTIONS)
    with pytest.raises(ValueError, match=r"model_fingerprint: .* there"):
        write_record(tmp_path, model_of("gpt2"), prompts, OPTIONS)


def test_record_refuses_long_prompts_or_cuts_them_at_their_beginning(tmp_path):
    model = model_of("trained")
    long = Prompt(looping_text(POSITIONS + 5).tolist(), "long")
    with pytest.raises(
        ValueError, match=rf"prompt 1 long has {POSITIONS + 5} tokens; .*--truncate"
    ):
        write_record(tmp_path, model, [make_prompts(1)[0], long], OPTIONS)
    options = RecordOptions(top_k=6, max_new_tokens=11, truncate=True)
    write_record(tmp_path, model, [long], options)
    (text,) = read_record(tmp_path).texts
    assert text.prompt.tolist() == list(long.token_ids[-(POSITIONS - 10) :])
    assert len(text.output) == 11


def test_record_options_out_of_range_are_named(tmp_path):
    for name, value in (("top_k", 0), ("top_k", 65), ("max_new_tokens", 0), ("texts_per_shard", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}; expected 1"):
            RecordOptions(**{name: value})
    with pytest.raises(ValueError, match=rf"top_k is 64; expected 1\.\.{VOCAB}, the vocabulary"):
        write_record(tmp_path, model_of("trained"), make_prompts(1), RecordOptions(top_k=64))


def test_heads_that_read_states_are_recorded_as_they_decode() -> None:
    """A record of heads that read a decoder layer replays what decoding them does."""

    class LayerHeads:
        num_slots, hidden_layers = 3, (0,)

        def read_states(self, states: Any) -> torch.Tensor:
            for state in states:
                state.memory = torch.cat([*([] if state.memory is None else [state.memory]),
                                          state.take_features()])  # fmt: skip
                assert len(state.memory) == len(state.tokens) - 1
            sums = torch.stack([state.memory.sum(0) for state in states])
            return torch.stack([embedding(sums * factor) for factor in (0.5, 1.0, -0.3)], dim=1)

    base = random_model("llama").base
    embedding = base.get_output_embeddings()
    heads, prompt = LayerHeads(), [5, 9, 2, 11, 7]
    drafting = DraftingModel(base, heads)
    output = decode(drafting, prompt, ArgmaxDrafter(), max_new_tokens=20)
    text = record_text(drafting, prompt, output.token_ids, top_k=4)
    assert text.token_ids.shape == (20, 3, 4)
    with torch.inference_mode():
        for index in range(20):
            ids = torch.tensor([[*prompt, *output.token_ids[:index]]])
            layer = base(ids, output_hidden_states=True).hidden_states[1][0].sum(0)
            logits = torch.stack([embedding(layer * factor) for factor in (0.5, 1.0, -0.3)])
            assert text.token_ids[index, :, 0].tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("reads", ["hidden states", "decode states"])
def test_the_time_of_the_heads_is_part_of_calls_with_drafts(monkeypatch, reads):
    """Each call of the target takes 4 s and one of the heads 3 s by this clock."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    base = copy.deepcopy(trained_model().base)

    def advance(seconds):
        clock[0] += seconds

    class Heads:
        num_slots = 4

        def read_states(self, states):
            advance(3.0)
            return torch.zeros(len(states), 4, VOCAB)

    def heads(hidden):
        advance(3.0)
        return torch.zeros(len(hidden), 4, VOCAB)

    base.register_forward_hook(lambda *_: advance(4.0))
    base.transformer.register_forward_hook(lambda *_: advance(4.0))
    model = DraftingModel(base, heads if reads == "hidden states" else Heads())
    costs = time_calls(model, (0, 2, 5), 3)
    assert costs[2] == costs[5] == costs[0] + 3e3
    assert measure_costs(DraftingModel(base), (0, 5), rounds=3) == {0: costs[0], 5: costs[0]}
