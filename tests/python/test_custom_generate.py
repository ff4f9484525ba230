"""`model.generate(custom_generate=...)` returns the output of plain `generate`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from transformers import (
    BloomForCausalLM,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MptForCausalLM,
    StoppingCriteriaList,
)

from blockwise_models import VOCAB, model_of, pad, small_lm
from lattice_bpd.decode import CustomGenerate
from lattice_bpd.draft.config import DraftConfig
from target_models import PROMPTS, build_target
from tiny_models import make_tiny_model


def method(kind: str) -> CustomGenerate:
    config = DraftConfig("tree", top_k=6, max_nodes=12)
    return CustomGenerate(model_of(kind).head_logits, config, lm=small_lm())


def assert_equal_to_plain(kind: str, inputs: dict, **options):
    base = model_of(kind).base
    options = {"max_new_tokens": 24, "do_sample": False, **options}
    plain = base.generate(**inputs, **options)
    ours = base.generate(**inputs, custom_generate=method(kind), **options)
    assert ours.tolist() == plain.tolist()
    return ours


REFUSED = {
    "num_beams": {"num_beams": 3},
    "num_beams=3": {"num_beams": 3, "do_sample": True},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "assistant_early_exit": {"assistant_early_exit": 1},
    "use_mtp": {"use_mtp": True},
    "prefill_chunk_size": {"prefill_chunk_size": 2},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "position_ids": {"position_ids": torch.tensor([[4, 5, 6]])},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_honored_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name):
        model_of("llama").base.generate(
            torch.tensor([[1, 2, 3]]), custom_generate=method("llama"), max_new_tokens=4,
            **REFUSED[name],
        )  # fmt: skip


def test_hidden_tokens_between_others_are_left_out():
    inputs = {
        "input_ids": torch.tensor([[4, 1, 9, 2, 3], [0, 7, 8, 0, 5]]),
        "attention_mask": torch.tensor([[1, 0, 1, 1, 1], [0, 1, 1, 0, 1]]),
    }
    assert_equal_to_plain("llama", inputs, repetition_penalty=1.3)


def test_padding_on_the_right_is_refused():
    base = model_of("llama").base
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(ValueError, match="the last token, 3, is hidden as padding"):
        base.generate(
            ids, attention_mask=torch.tensor([[1, 1, 0]]), custom_generate=method("llama"),
            max_new_tokens=4,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "hidden"),
    [(kind, [8, 9]) for kind in ("mistral", "gpt_neo", "qwen3_next", "lfm2", "jamba", "bamba")]
    + [("roformer", [0, 1, 2])],
)
def test_hidden_tokens_that_the_model_counts_are_refused(kind, hidden):
    """By windows and states, or as positions of a decoder that takes none."""
    model, row = build_target(kind), torch.tensor(PROMPTS[:1])
    mask = torch.ones_like(row).index_fill(1, torch.tensor(hidden), 0)
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True}
    own = model.generate(row, attention_mask=mask, output_logits=True, **options)
    rest = row[mask > 0][None]
    without = model.generate(
        rest, attention_mask=torch.ones_like(rest), output_logits=True, **options
    )
    assert float((own.logits[0] - without.logits[0]).abs().max()) > 0.05
    with pytest.raises(ValueError, match=r"attention_mask hides .* still counts"):
        model.generate(row, attention_mask=mask, **options, custom_generate=CustomGenerate())


@pytest.mark.parametrize("kind", [BloomForCausalLM, MptForCausalLM])
def test_padding_does_not_count_for_biases_by_distance(kind):
    """ALiBi takes no positions, and is the same with padding on the left."""
    torch.manual_seed(0)
    model, row = make_tiny_model(kind, kind.config_class()), torch.tensor([[0, 0, 5, 9, 7, 5]])
    options = {"attention_mask": (row > 0).long(), "max_new_tokens": 8, "do_sample": False}
    own = model.generate(row, **options)
    assert torch.equal(
        own[:, -8:], model.generate(row[:, 2:], max_new_tokens=8, do_sample=False)[:, -8:]
    )
    assert torch.equal(model.generate(row, **options, custom_generate=CustomGenerate()), own)


PROMPT = torch.tensor([[5, 10, 15, 20]])


class Favor(LogitsProcessor):
    """Adds to the logits of tokens that the last one leads to."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, (int(input_ids[0, -1]) * 7 + 3) % VOCAB] += 40.0
        return scores


class Reverse(LogitsProcessor):
    """The best token becomes the worst."""

    def __call__(self, _input_ids, scores):
        return -scores


def run(processors, criteria, *, config: GenerationConfig | None = None, ids=PROMPT) -> list[int]:
    method = CustomGenerate(model_of("trained").head_logits, top_k=6, max_nodes=12)
    output = method(
        model_of("trained").base, ids, LogitsProcessorList(processors),
        StoppingCriteriaList(criteria), config or GenerationConfig(),
    )  # fmt: skip
    return output[0, ids.shape[1] :].tolist()


def test_processors_are_applied_in_their_order():
    outputs = [
        assert_equal_to_plain("trained", pad(PROMPT.tolist()), logits_processor=processors)
        for processors in ([Favor(), Reverse()], [Reverse(), Favor()])
    ]
    assert outputs[0].tolist() != outputs[1].tolist()  # else this test would say nothing


@pytest.mark.parametrize("processors", [[], [Favor()]], ids=["plain", "processed"])
def test_the_shortest_of_several_lengths_counts(processors):
    for lengths in ([12, 7], [7, 12], [9, 7, 30]):
        assert len(run(processors, [MaxLengthCriteria(n) for n in lengths])) == 3
    # a criterion goes before the config
    assert len(run(processors, [MaxLengthCriteria(9)], config=GenerationConfig(max_length=6))) == 5
    assert len(run(processors, [], config=GenerationConfig(max_length=6))) == 2


@pytest.mark.parametrize("processors", [[], [Favor()]], ids=["plain", "processed"])
def test_the_first_of_any_end_token_ends_the_text(processors):
    whole = run(processors, [MaxLengthCriteria(16)])
    first = next(n for n in range(2, 12) if whole[n] not in whole[:n])
    later = next(n for n in range(first + 1, 12) if whole[n] not in whole[:n])
    for ends in ([whole[later], whole[first]], [whole[first]]):
        criteria = [EosTokenCriteria(end) for end in ends] + [MaxLengthCriteria(16)]
        assert run(processors, criteria) == whole[: first + 1]
    assert run(processors, [EosTokenCriteria(whole[:4]), MaxLengthCriteria(16)]) == whole[:1]


def test_weights_spread_over_processes_are_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    where = "lattice_bpd.decode.huggingface.checks"
    monkeypatch.setattr(f"{where}.is_fsdp_managed_module", lambda _: True)
    config = GenerationConfig(max_new_tokens=4)
    with pytest.raises(ValueError, match="synced_gpus cannot be honored"):
        method("llama")(
            model_of("llama").base, torch.tensor([[1, 2]]), LogitsProcessorList(),
            StoppingCriteriaList(), config,
        )  # fmt: skip
