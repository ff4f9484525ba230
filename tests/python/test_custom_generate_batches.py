"""Processors and criteria in batches: the output of plain `generate`, or a refusal by name."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

import tokenizers
import torch
from transformers import (
    LogitsProcessor,
    MaxTimeCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StopStringCriteria,
)
from transformers.generation import logits_process
from transformers.generation.streamers import BaseStreamer

from blockwise_models import VOCAB, model_of
from lattice_bpd.decode import CustomGenerate

EOS, PAD, ROWS, NEW = 7, 46, 4, 18
ENDS = {"eos_token_id": EOS, "pad_token_id": 0}


def inputs(seed: int = 1) -> dict[str, torch.Tensor]:
    """Prompts of four lengths, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (ROWS, 9), generator=generator)
    mask = (torch.arange(9) >= torch.tensor([[0], [4], [6], [2]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def both(make=list, kind: str = "trained", seed: int = 1, **options) -> tuple[torch.Tensor, ...]:
    """Outputs of plain `generate` and with CustomGenerate; `make` returns new processors."""
    base, outputs = model_of(kind).base, []
    for method in (None, CustomGenerate(model_of(kind).head_logits, top_k=6, max_nodes=12)):
        own = {name: value() if callable(value) else value for name, value in options.items()}
        settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **own}
        outputs.append(
            base.generate(
                **inputs(seed), custom_generate=method, logits_processor=make(), **settings
            )
        )
    return tuple(outputs)


# settings that make `generate` build each row-wise processor
SETTINGS = {
    "EncoderNoRepeatNGramLogitsProcessor": {"encoder_no_repeat_ngram_size": 2},
    "EncoderRepetitionPenaltyLogitsProcessor": {"encoder_repetition_penalty": 0.4},
    "ExponentialDecayLengthPenalty": {"exponential_decay_length_penalty": (4, 1.5), **ENDS},
    "ForcedBOSTokenLogitsProcessor": {"forced_bos_token_id": 3},
    "ForcedEOSTokenLogitsProcessor": {"forced_eos_token_id": EOS, **ENDS},
    "InfNanRemoveLogitsProcessor": {"remove_invalid_values": True},
    "LogitNormalization": {"renormalize_logits": True},
    "MinLengthLogitsProcessor": {"min_length": 20, **ENDS},
    "MinNewTokensLengthLogitsProcessor": {"min_new_tokens": 12, **ENDS},
    "NoBadWordsLogitsProcessor": {"bad_words_ids": [[3], [8, 13]]},
    "NoRepeatNGramLogitsProcessor": {"no_repeat_ngram_size": 2},
    "RepetitionPenaltyLogitsProcessor": {"repetition_penalty": 1.7},
    "SequenceBiasLogitsProcessor": {"sequence_bias": [[[3], -4.0], [[8, 13], 5.0]]},
    "SuppressTokensAtBeginLogitsProcessor": {"begin_suppress_tokens": [5, 18]},
    "SuppressTokensLogitsProcessor": {"suppress_tokens": [1, 2, 13]},
    "WatermarkLogitsProcessor": {
        "watermarking_config": {"bias": 3.0, "seeding_scheme": "selfhash", "context_width": 2}
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_batch_with_each_processor_of_transformers(name):
    for kind in ("trained", "llama"):
        plain, ours = both(kind=kind, **SETTINGS[name])
        assert ours.tolist() == plain.tolist()


class Late(LogitsProcessor):
    """Counts its calls: from the sixth on it favors the token of this number."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _input_ids, scores):
        self.calls += 1
        if self.calls >= 6:
            scores[:, self.calls % VOCAB] += 30.0
        return scores


class Remembers(LogitsProcessor):
    """Sums the scores of each row over all steps."""

    def __init__(self) -> None:
        self.total = None

    def __call__(self, _input_ids, scores):
        self.total = scores if self.total is None else self.total + scores
        return scores - 0.4 * self.total


@pytest.mark.parametrize("kind", [Late, Remembers])
@pytest.mark.parametrize("ends", [{}, ENDS], ids=["length", "ends"])
def test_ones_own_processors_that_treat_rows_alike(kind, ends):
    plain, ours = both(lambda: [kind()], **ends)
    assert ours.tolist() == plain.tolist()
    assert ours.tolist() != both(**ends)[0].tolist()  # else this test would say nothing


class ByRow(LogitsProcessor):
    """Favors a token for each row, from a step on."""

    def __init__(self, start: int = 0) -> None:
        self.start = 9 + start

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] >= self.start:
            for row in range(len(scores)):
                scores[row, 11 + row] += 30.0
        return scores


class NotWhatOthersSaid(LogitsProcessor):
    """Masks the tokens that other rows have decoded: nothing at the first step."""

    def __call__(self, input_ids, scores):
        scores[:, input_ids[:, 9:].flatten()] = -float("inf")
        return scores


class Subclass(logits_process.TemperatureLogitsWarper):
    """Of a row-wise processor, but not row-wise."""

    def __init__(self) -> None:
        super().__init__(0.5)

    def __call__(self, input_ids, scores):
        return super().__call__(input_ids, scores) * torch.arange(1, 1 + len(scores))[:, None]


class Uncopyable(LogitsProcessor):
    """Cannot be copied for each row."""

    def __deepcopy__(self, memo):
        raise TypeError("no copies")

    def __call__(self, _input_ids, scores):
        return scores


@pytest.mark.parametrize(
    ("name", "make"),
    [("ByRow", ByRow), ("ByRow", functools.partial(ByRow, 5)), ("Subclass", Subclass),
     ("NotWhatOthersSaid", NotWhatOthersSaid), ("Uncopyable", Uncopyable)],
)  # fmt: skip
@pytest.mark.parametrize("ends", [{}, ENDS], ids=["length", "ends"])
def test_what_couples_rows_is_refused_by_name(name, make, ends):
    with pytest.raises(ValueError, match=rf"CustomGenerate: {name} cannot be "):
        both(lambda: [make()], **ends)
    one = {key: value[:1] for key, value in inputs().items()}  # as by plain `generate`
    outputs = [
        model_of("trained").base.generate(
            **one, custom_generate=own, logits_processor=[make()], max_new_tokens=NEW,
            do_sample=False, **ends,
        )
        for own in (None, CustomGenerate(model_of("trained").head_logits))
    ]  # fmt: skip
    assert outputs[0].tolist() == outputs[1].tolist()


class SeesPadding(LogitsProcessor):
    """Favors a token in all rows while one is padded."""

    def __call__(self, input_ids, scores):
        scores[:, PAD] = -float("inf")
        scores[:, 20] += 30.0 * bool((input_ids[:, -1] == PAD).any())
        return scores


def test_processors_are_given_the_padding_of_rows_that_have_ended():
    with pytest.raises(ValueError, match="CustomGenerate: SeesPadding cannot be honored"):
        both(lambda: [SeesPadding()], eos_token_id=EOS, pad_token_id=PAD)
    plain, ours = both(lambda: [SeesPadding()])  # none ends
    assert ours.tolist() == plain.tolist()


def test_several_samples_of_each_prompt_have_its_rules():
    base = model_of("trained").base
    method = CustomGenerate(model_of("trained").head_logits, top_k=6, max_nodes=12)
    tokens = [[3, 5], [8, 9], [11, 12], [20, 21]]
    output = base.generate(
        **inputs(), custom_generate=method, do_sample=True, num_return_sequences=3, pad_token_id=0,
        max_new_tokens=6, prefix_allowed_tokens_fn=lambda number, _: tokens[number],
        encoder_no_repeat_ngram_size=2, encoder_repetition_penalty=1.3,
    )  # fmt: skip
    for number, row in enumerate(output[:, 9:].tolist()):
        assert set(row) <= set(tokens[number // 3])


class LengthOfRow(StoppingCriteria):
    """Ends each row after another length."""

    def __call__(self, input_ids, _scores, **_):
        return torch.arange(len(input_ids)) * 2 + 11 <= input_ids.shape[1]


class EqualPair(StoppingCriteria):
    """Ends a row after two tokens of the same parity, counting its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids, _scores, **_):
        self.calls += 1
        return (input_ids[:, -1] % 2 == input_ids[:, -2] % 2) & (self.calls > 4)


class Tracker(StoppingCriteria):
    """Keeps a flag for each row, looks back, and ends all rows together, as harnesses do."""

    def __init__(self, sized: int = ROWS) -> None:
        self.done, self.seen = [False] * sized, list[list[list[int]]]()

    def __call__(self, input_ids, _scores, **_):
        self.seen.append(input_ids.tolist())
        for row, done in enumerate(self.done):
            self.done[row] = done or bool((input_ids[row, 9:][-3:] % 3 == 1).any())
        return all(self.done)


class FlagsOfRows(Tracker):
    """The same, for each row alone."""

    def __call__(self, input_ids, scores, **_):
        super().__call__(input_ids, scores)
        return torch.tensor(self.done)


class AnyRow(StoppingCriteria):
    """Ends all rows after a token of any of them."""

    def __call__(self, input_ids, _scores, **_):
        return (input_ids[:, 12:] % 11 == 3).any().expand(len(input_ids))


class ByScores(StoppingCriteria):
    """Ends a row whose last choice was close."""

    def __call__(self, _input_ids, scores, **_):
        best = scores[-1].topk(2, dim=-1).values
        return (best[:, 0] - best[:, 1] < 1.0) & (len(scores) > 3)


CRITERIA = [LengthOfRow, EqualPair, Tracker, FlagsOfRows, AnyRow]


@pytest.mark.parametrize("make", CRITERIA)
@pytest.mark.parametrize("ends", [{}, ENDS], ids=["length", "ends"])
@pytest.mark.parametrize("kind", ["trained", "llama"])
def test_criteria_are_called_on_the_whole_batch(make, ends, kind):
    given: list[StoppingCriteria] = []

    def criteria():
        given.append(make())
        return given[-1:]

    lengths = set()
    for seed in range(6):
        plain, ours = both(kind=kind, seed=seed, stopping_criteria=criteria, **ends)
        assert ours.tolist() == plain.tolist()
        assert vars(given[-2]) == vars(given[-1])  # called equally often, with equal texts
        lengths.add(plain.shape[1])
    assert min(lengths) < 9 + NEW or (make, kind) == (EqualPair, "trained")


def test_criteria_that_read_scores_and_records_of_texts_that_are_cut():
    outputs, own = [], CustomGenerate(model_of("trained").head_logits, top_k=6, max_nodes=12)
    for method in (None, own):
        outputs.append(
            model_of("trained").base.generate(
                **inputs(2), custom_generate=method, stopping_criteria=[ByScores()],
                max_new_tokens=NEW, do_sample=False, output_scores=True, output_logits=True,
                return_dict_in_generate=True, repetition_penalty=1.2, **ENDS,
            )
        )  # fmt: skip
    plain, ours = outputs
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert len(ours.scores) == len(ours.logits) == len(plain.scores)
    lengths = torch.tensor([len(result.token_ids) for result in own.results])
    for name in ("scores", "logits"):
        for index, (one, other) in enumerate(zip(ours[name], plain[name], strict=True)):
            assert torch.allclose(one[index < lengths], other[index < lengths], atol=1e-4)
            assert bool(one[index >= lengths].isnan().all())


@pytest.mark.parametrize("ends", [{}, ENDS], ids=["length", "ends"])
def test_criteria_of_transformers_without_and_with_an_end_token(ends):
    letters = {chr(ord("a") + token): token for token in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)

    def stops():
        return [StopStringCriteria(fast, ["c", "n", "x"]), MaxTimeCriteria(100.0)]

    for seed in range(4):
        plain, ours = both(seed=seed, stopping_criteria=stops, **ends)
        assert ours.tolist() == plain.tolist()
    _, ours = both(stopping_criteria=lambda: [MaxTimeCriteria(0.0)])
    assert ours.shape[1] == 10


class Received(BaseStreamer):
    """What a streamer is given."""

    def __init__(self) -> None:
        self.parts, self.ended = list[list](), 0

    def put(self, value):
        self.parts.append(value.tolist())

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("ends", [{}, ENDS], ids=["length", "ends"])
@pytest.mark.parametrize("make", [None, FlagsOfRows, Tracker])
def test_a_batch_streams_what_is_settled(make, ends):
    streamers = [Received(), Received()]
    given = iter(streamers)
    criteria = {} if make is None else {"stopping_criteria": lambda: [make()]}
    plain, ours = both(streamer=lambda: next(given), **criteria, **ends)
    assert ours.tolist() == plain.tolist()
    assert streamers[0].parts == streamers[1].parts
    assert streamers[0].ended == streamers[1].ended == 1


def test_what_cut_texts_report():
    method = CustomGenerate(model_of("trained").head_logits, top_k=6, max_nodes=12)
    output = model_of("trained").base.generate(
        **inputs(), custom_generate=method, stopping_criteria=[LengthOfRow()], do_sample=False,
        max_new_tokens=NEW, return_dict_in_generate=True, **ENDS,
    )  # fmt: skip
    for row, (result, ids) in enumerate(zip(method.results, output.sequences, strict=True)):
        assert len(result.token_ids) == result.stats.tokens <= 2 + 2 * row
        assert result.token_ids == ids[9 : 9 + len(result.token_ids)].tolist()
        assert (result.finish == "criterion") is (len(result.token_ids) == 2 + 2 * row)


def test_errors_of_criteria_are_those_of_generate():
    with pytest.raises(IndexError, match="out of bounds"):
        both(stopping_criteria=lambda: [Tracker(ROWS + 1)], **ENDS)
