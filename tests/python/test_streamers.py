"""Streamers of transformers: the same text in the same pieces, and an end in every case."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from transformers.generation.streamers import BaseStreamer

from lattice_bpd.decode import CustomGenerate, generate
from planted_drafts import PlantedDrafts, plain_continuation
from test_generate_inputs import VOCAB
from test_generate_settings import model_with

PROMPT = [5, 6, 7]
NEW = 20


class Recorder(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.values, self.ends = [], 0

    def put(self, value):
        self.values.append(value.tolist())

    def end(self):
        self.ends += 1


def planted(model) -> PlantedDrafts:
    return PlantedDrafts(plain_continuation(model, PROMPT, max_new_tokens=NEW), VOCAB)


def options_of(model, streamer) -> dict:
    return {"input_ids": torch.tensor([PROMPT]), "do_sample": False, "max_new_tokens": NEW,
            "streamer": streamer}  # fmt: skip


def test_a_streamer_gets_what_plain_generate_gives_it():
    model = model_with(repetition_penalty=1.2)
    plain, ours, own = Recorder(), Recorder(), Recorder()
    model.generate(**options_of(model, plain))
    method = CustomGenerate(drafter=planted(model))
    model.generate(**options_of(model, ours), custom_generate=method)
    assert method.results[0].stats.block_efficiency > 2.0
    assert ours.values == plain.values
    assert ours.ends == plain.ends == 1
    generate(model, PROMPT, drafter=planted(model), streamer=own, max_new_tokens=NEW)
    assert (own.values, own.ends) == (plain.values, 1)
    with pytest.raises(ValueError, match="a streamer takes one text, found 2 prompts"):
        generate(model, [PROMPT, PROMPT], streamer=own)
    assert own.ends == 2  # who waits for the text is not left waiting


class Fails:
    """A drafter that fails after a few steps."""

    def __init__(self) -> None:
        self.steps = 0

    def propose(self, states):
        self.steps += 1
        if self.steps == 3:
            raise KeyError("planted")
        return [None] * len(states)


def test_an_error_ends_the_stream():
    model = model_with()
    for work in (
        lambda streamer: model.generate(
            **options_of(model, streamer), custom_generate=CustomGenerate(drafter=Fails())
        ),
        lambda streamer: generate(model, PROMPT, drafter=Fails(), streamer=streamer),
        lambda streamer: generate(model, "text", streamer=streamer),
        lambda streamer: generate(object(), PROMPT, streamer=streamer),
    ):
        streamer = Recorder()
        with pytest.raises((KeyError, ValueError, TypeError)):
            work(streamer)
        assert streamer.ends == 1  # who waits for the text is not left waiting


def test_an_assistant_is_refused_by_name():
    model = model_with()
    with pytest.raises(ValueError, match="assistant_model cannot be honored"):
        model.generate(
            torch.tensor([PROMPT]), assistant_model=model, max_new_tokens=4,
            custom_generate=CustomGenerate(drafter="greedy"),
        )  # fmt: skip
