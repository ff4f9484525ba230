"""Certificates: differences and noise against plain forwards, verdicts, files, planted faults."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from blockwise_models import ARCHITECTURES, CACHE_NAME, VOCAB, model_of
from lattice_bpd.decode import Certificate, CertificateError, Drafter, decode, generate
from lattice_bpd.decode.certificate import CheckedPosition
from lattice_bpd.decode.certificate import certificate as certificates
from lattice_bpd.decode.certificate.certificate import MarginSelector, certify, check_text
from lattice_bpd.decode.certificate.noise import POSITIONS, Noise, follow_text
from lattice_bpd.decode.certificate.own_generate import margin_of, write_plainly
from lattice_bpd.decode.loop import decode as loops
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.models.forward import LMOutput
from lattice_bpd.verify import PrefixTree
from lattice_bpd.verify import target as targets
from lattice_bpd.verify.acceptance import TopKMatch
from lattice_bpd.verify.greedy import DraftCandidates
from tiny_models import make_tiny_model

LAYOUTS = ["tree", "rows"]


@functools.cache
def target(kind: str, dtype: torch.dtype):
    """A target of the tests' architectures, or a deeper one."""
    if kind in ARCHITECTURES:
        return copy.deepcopy(model_of(kind).base).to(dtype)
    torch.manual_seed(5)
    ends = dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])
    if kind == "deep gpt2":
        base = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=64, n_layer=8, n_head=4, **ends)
        )
    else:
        base = LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCAB, hidden_size=64, intermediate_size=128,
                        num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
                        max_position_embeddings=64, **ends)
        )  # fmt: skip
    with torch.no_grad():
        for weight in base.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, 0.15)
    return base.eval().to(dtype)


class HalfRight(Drafter):
    """Two drafts of which the second knows what will come, so that calls accept much."""

    def __init__(self, coming: list[int], prompt_length: int) -> None:
        self.coming, self.length = coming, prompt_length

    def propose(self, states):
        return [self.draft(state) for state in states]

    def draft(self, state):
        done = len(state.tokens) - self.length
        right = self.coming[done : done + min(5, state.num_slots)]
        if len(right) < 1:
            return None
        wrong = [(token + 1) % VOCAB for token in right]
        return PrefixTree.from_drafts(state.tokens[-1], [wrong, right])


def random_prompts(count: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(1, 16)).tolist() for _ in range(count)]


def plain_greedy(base, prompt: list[int], count: int) -> list[int]:
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    ids = torch.tensor([prompt])
    output = base.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    return output[0, len(prompt) :].tolist()


def with_certificates(base, prompts, count=40, **options):
    outputs = [plain_greedy(base, prompt, count) for prompt in prompts]
    drafters = [HalfRight(out, len(p)) for out, p in zip(outputs, prompts, strict=True)]
    options = {"max_new_tokens": count, "certificate": True, **options}
    return decode(base, prompts, drafters, **options), outputs


@torch.no_grad()
def own_logits(base, prompt: list[int], text: list[int]) -> torch.Tensor:
    """(m, V) logits of the model's own forward, one token at a time after the prompt."""
    cache, rows = DynamicCache(config=base.config), []
    for start, ids in enumerate([prompt, *([token] for token in text[:-1])]):
        steps = torch.arange(len(ids)) + (start and len(prompt) + start - 1)
        output = base(
            torch.tensor([ids]), position_ids=steps[None], use_cache=True, **{CACHE_NAME: cache}
        )
        rows.append(output.logits[0, -1].float())
    return torch.stack(rows)


class KeepsRows(MarginSelector):
    """Stays reachable after decoding."""

    seen: list[KeepsRows]

    def __init__(self) -> None:
        super().__init__()
        self.seen.append(self)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [*ARCHITECTURES, "deep gpt2", "deep llama"])
def test_all_logits_are_compared_and_within_the_noise(kind, dtype, layout, monkeypatch):
    monkeypatch.setattr(KeepsRows, "seen", [], raising=False)
    monkeypatch.setattr(loops, "MarginSelector", KeepsRows)
    base = target(kind, dtype)
    results, _ = with_certificates(base, random_prompts(2, seed=1), count=32, layout=layout)
    for result, selector in zip(results, KeepsRows.seen, strict=True):
        given = result.certificate
        own = own_logits(base, given.prompt_token_ids, result.token_ids)
        ours = torch.stack([selector.rows[index].float() for index in range(32)])
        largest = (ours - own).abs().amax(dim=1)
        assert given.compared == 32
        assert given.difference == pytest.approx(float(largest.max()), rel=0.1)
        assert given.mean_difference == pytest.approx(float(largest.mean()), rel=0.1)
        assert given.beyond == []
        assert given.mean_difference <= given.noise.mean_bound


@torch.no_grad()
def test_noise_is_that_of_plain_forwards():
    base, prompt = target("deep llama", torch.bfloat16), [3, 17, 5]
    text = plain_greedy(base, prompt, 40)
    own, ids = own_logits(base, prompt, text), torch.tensor([[*prompt, *text[:-1]]])
    shapes = [base(ids, use_cache=False).logits[0], base(ids.repeat(3, 1)).logits[0]]
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.int64), ids], dim=1)
    steps = torch.stack([(torch.arange(45) - 3).clamp(min=0), torch.arange(45)])
    mask = torch.ones_like(steps)
    mask[0, :3] = 0
    longer = torch.cat([ids, ids], dim=1)[:, :45]
    rows = base(torch.cat([padded, longer]), attention_mask=mask, position_ids=steps)
    shapes.append(rows.logits[0, 3:])
    cache, chunks = DynamicCache(config=base.config), []
    for start, end in [(0, 3), *((n, n + 4) for n in range(3, 42, 4))]:
        output = base(ids[:, start:end], use_cache=True, **{CACHE_NAME: cache})
        chunks.append(output.logits[0])
    shapes.append(torch.cat(chunks))
    differences = torch.stack([rows[2:].float() - own for rows in shapes])
    logits, best = differences.abs().amax(dim=2), own.topk(2).indices
    margins = differences.gather(2, best.expand(4, -1, -1)).diff(dim=2)
    choices, noise = follow_text(DraftingModel(base).target, prompt, text, [4, 1])
    assert (choices.token_ids, choices.differing) == (text, [])
    assert noise.shapes == ["one call", "3 copies", "padded", "chunks of 4"]
    assert (noise.positions, noise.samples) == (list(range(40)), 160)
    assert noise.local == pytest.approx(logits.amax(dim=0).tolist())
    assert noise.logits == pytest.approx(float(logits.quantile(0.99)))
    assert noise.mean == pytest.approx(float(logits.mean(dim=1).max()))
    assert noise.margins == pytest.approx(float(margins.abs().quantile(0.99)))
    assert noise.unit == pytest.approx(2.0**-7 * float(own.abs().max()))
    assert 0.0 < noise.margins < noise.logits
    bounds = noise.logit_bound, noise.mean_bound, noise.margin_bound
    least = max(noise.margins, noise.unit)
    assert bounds == (2.5 * noise.logits, 1.3 * max(noise.mean, noise.unit), 2.5 * least)


@pytest.mark.filterwarnings("ignore")
def test_noise_does_not_cross_a_boundary_of_frequencies():
    base = make_tiny_model(Phi3ForCausalLM, Phi3Config())  # other frequencies from 16 on
    for prompt, measured in (([3, 17, 5], range(14)), ([3] * 16, range(1)), ([3] * 17, range(24))):
        text = plain_greedy(base, prompt, 24)
        choices, noise = follow_text(DraftingModel(base).target, prompt, text)
        assert (choices.differing, noise.positions) == ([], list(measured))
        assert noise.logit_bound < 1e-4
        assert decode(base, prompt, HalfRight(text, len(prompt)), max_new_tokens=24,
                      certificate=True).certificate.verdict == "lossless"  # fmt: skip


def test_noise_is_measured_along_the_whole_text():
    base, text = target("gpt2", torch.bfloat16), [7] * 60
    rows = []
    write_plainly(base, [3, 17], text, lambda _, scores: rows.append(scores.clone()))
    assert torch.equal(torch.stack(rows), own_logits(base, [3, 17], text))
    noise = follow_text(DraftingModel(target("deep llama", torch.float32)).target, [1], [7] * 63)[1]
    assert noise.positions == list(range(63))
    assert POSITIONS > 63
    assert follow_text(DraftingModel(base).target, [1], [7])[1].positions == [0]


def test_rows_are_kept_while_they_fit(monkeypatch):
    monkeypatch.setattr(certificates, "_ROW_BYTES", 4 * 2 * 10)
    selector = MarginSelector()
    for index in range(50):
        selector.choose(torch.tensor([0.0, float(index)]), DraftCandidates((), 0))
    assert sorted(selector.rows) == [0, 8, 16, 24, 32, 40, 48]
    assert all(float(row[1]) == index for index, row in selector.rows.items())
    assert len(selector.margins) == 50


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["gpt2", "mistral", "deep llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_lossless_certificate_means_greedy_output(kind, dtype, layout):
    base, texts = target(kind, dtype), random_prompts(5, seed=2)
    results, outputs = with_certificates(base, texts, count=24, layout=layout)
    ties = 0
    for result, output in zip(results, outputs, strict=True):
        given = result.certificate
        assert given.verdict in ("lossless", "tie")
        if result.token_ids == output:
            assert given.verdict == "lossless"
            continue
        pairs = enumerate(zip(result.token_ids, output, strict=True))
        index = next(number for number, (ours, theirs) in pairs if ours != theirs)
        apart = next(checked for checked in given.checked if not checked.agrees)
        assert given.verdict == "tie"
        assert (apart.position, apart.plain_token_id) == (index, output[index])
        assert apart.plain_margin <= 0.0
        ties += 1
    assert ties == 0 or dtype == torch.bfloat16
    calls = [result.stats.target_calls for result in results]
    assert max(calls) < 24  # drafts were accepted


def test_certificate_of_one_text():
    base = target("gpt2", torch.float32)
    (result,), _ = with_certificates(base, [[3, 17, 5]], layout="tree")
    certificate = result.certificate
    assert (certificate.prompt_token_ids, certificate.token_ids) == ([3, 17, 5], result.token_ids)
    assert len(certificate.margins) == certificate.compared == 40
    assert (certificate.dtype, certificate.device, certificate.batch_size) == ("float32", "cpu", 1)
    assert ("prompt", 1, 3) in certificate.shapes
    assert {shape[0] for shape in certificate.shapes} == {"prompt", "tree", "rows"} - {"rows"}
    assert min(certificate.margins) > certificate.noise.margin_bound
    assert certificate.checked == []
    logits = base(torch.tensor([[3, 17, 5, *result.token_ids[:9]]])).logits[0, -1].detach()
    best = logits.topk(2).values
    assert certificate.margins[9] == pytest.approx(float(best[0] - best[1]), abs=1e-4)
    assert generate(base, [3, 17, 5], "greedy").certificate is None


@pytest.mark.parametrize("options", [{"static_cache": True}, {"layout": "rows"}, {}])
def test_equal_logits_are_decided_again(options):
    base = copy.deepcopy(target("gpt2", torch.float32))
    with torch.no_grad():  # tokens 2 i and 2 i + 1 have equal embeddings, so that all margins are 0
        base.lm_head.weight[1::2] = base.lm_head.weight[::2]
    output = plain_greedy(base, [3, 17, 5], 20)
    result = decode(
        base, [3, 17, 5], HalfRight(output, 3), max_new_tokens=20, certificate=True, **options
    )
    given = result.certificate
    assert result.token_ids == output
    assert [token % 2 for token in output] == [0] * 20
    assert given.margins == [0.0] * 20
    assert [checked.position for checked in given.checked] == list(range(20))
    assert all(checked.agrees for checked in given.checked)
    assert given.verdict == "lossless"


def certificate_of(token_ids: list[int], margins: list[float] | None = None):
    """A certificate of a text that is given, with margins as they are or made up."""
    model, selector = DraftingModel(target("gpt2", torch.float32)), MarginSelector()
    for row in own_logits(model.target.base, [3, 17, 5], token_ids):
        selector.choose(row, DraftCandidates((), 0))
    selector.margins = margins or selector.margins
    return certify(model, [3, 17, 5], token_ids, selector, {("rows", 1, 1)}, 1)


def test_certificate_of_a_wrong_text_says_so():
    right = plain_greedy(target("gpt2", torch.float32), [3, 17, 5], 12)
    assert certificate_of(right).verdict == "lossless"
    wrong = [*right[:6], (right[6] + 1) % VOCAB, *right[7:]]
    given = certificate_of(wrong)
    assert given.verdict == "different"
    assert given.difference < given.noise.logit_bound
    assert (given.differing[0].position, given.differing[0].plain_token_id) == (6, right[6])
    assert given.differing[0].plain_margin < -given.noise.margin_bound
    small = certificate_of(right, [0.0] * 12)  # as if every lead had been nothing
    assert (small.verdict, len(small.checked)) == ("lossless", 12)


def test_verdicts_by_hand():
    given = certificate_of(plain_greedy(target("gpt2", torch.float32), [3, 17, 5], 20))
    given.noise = Noise(0.5, mean=0.2, margins=0.25, unit=0.125, positions=[0, 4, 5, 6],
                        local=[0.1, 0.4, 0.5, 0.9], shapes=["a", "b", "c"])  # fmt: skip
    assert given.noise.logit_bounds() == {0: 0.75, 4: 1.0, 5: 1.25, 6: 1.25}
    assert dataclasses.replace(given.noise, shapes=["a"]).logit_bounds() == {}
    assert dataclasses.replace(given.noise, unit=0.4).logit_bounds()[0] == 1.0
    given.mean_difference = 0.26
    assert certificates._verdict(given) == "lossless"
    given.checked = [CheckedPosition(4, 7, 0.1, 8, -0.625)]
    assert certificates._verdict(given) == "tie"
    given.checked = [CheckedPosition(4, 7, 0.1, 8, -0.63)]
    assert certificates._verdict(given) == "different"
    given.checked = []
    given.beyond = [3]
    assert certificates._verdict(given) == "different"
    given.beyond, given.mean_difference = [], 0.27
    assert certificates._verdict(given) == "different"
    given.compared = 15  # too few for a mean
    assert certificates._verdict(given) == "lossless"


def test_a_text_is_checked_again():
    model = DraftingModel(target("gpt2", torch.float32))
    right = plain_greedy(model.target.base, [3, 17, 5], 12)
    assert check_text(model, [3, 17, 5], right)[0].differing == []
    wrong = [*right[:6], (right[6] + 1) % VOCAB]
    choices, noise = check_text(model, [3, 17, 5], wrong)
    assert choices.differing == [6]
    assert choices.margins[6] < -noise.margin_bound


def test_margins_by_hand():
    row = np.array([1.0, -7.0, 3.0, 2.5, -np.inf], np.float32)
    assert (margin_of(row, 2), margin_of(row, 3)) == (0.5, -0.5)
    assert margin_of(row[:1], 0) == np.inf


def test_certificate_as_a_file(tmp_path):
    (result,), _ = with_certificates(target("gpt2", torch.bfloat16), [[3, 17, 5]], count=9)
    path = tmp_path / "text.json"
    result.certificate.save(path)
    content = json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("lattice-bpd certificate", 3)
    assert content["token_ids"] == result.token_ids
    assert content["margins"] == result.certificate.margins
    noise = result.certificate.noise
    assert content["noise"]["samples"] == 9 * len(content["noise"]["shapes"]) == noise.samples
    assert content["noise"]["logit_bound"] == noise.logit_bound
    assert content["verdict"] in ("lossless", "tie")
    assert "99 % quantile" in content["formula"]
    assert Certificate.load(path) == result.certificate
    assert [p.name for p in tmp_path.iterdir()] == ["text.json"]


class PlantedError:
    """A wrong fast call: hidden states scaled, a layer left out, or the window ignored."""

    def __init__(self, base, how: str) -> None:
        self.base, self.how = base, how

    def __call__(self, base, embedding, inputs, feature_layers=()):  # noqa: ARG002
        layers = base.model.layers
        if self.how == "layer":
            base.model.layers = layers[:-1]
        try:
            hidden = base.base_model(**inputs).last_hidden_state
        finally:
            base.model.layers = layers
        if self.how == "scale":  # the argmax is right, the logits are not
            hidden = hidden * 1.01
        return LMOutput(embedding(hidden), hidden)


@pytest.mark.parametrize("how", ["scale", "layer"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_wrong_fast_call_fails_the_certificate(how, batch, monkeypatch):
    base = copy.deepcopy(target("deep llama", torch.float32))
    right, outputs = with_certificates(base, random_prompts(batch, seed=4), count=12)
    assert [result.token_ids for result in right] == outputs
    assert {result.certificate.verdict for result in right} == {"lossless"}
    monkeypatch.setattr(targets, "call_inner", PlantedError(base, how))
    with pytest.raises(CertificateError, match="by more than rounding: logits differ"):
        with_certificates(base, random_prompts(batch, seed=4), count=12)
    prompts = random_prompts(batch, seed=4)
    results, outputs = with_certificates(base, prompts, count=12, certificate="report")
    wrong = 0
    for result, output in zip(results, outputs, strict=True):
        assert result.certificate.verdict == "different"
        wrong += result.token_ids != output
    assert (wrong > 0) == (how == "layer")  # a scale leaves the argmax as it is
    if not wrong:  # the bounds do not grow with the fault
        assert [r.certificate.noise for r in results] == [r.certificate.noise for r in right]


def test_certificates_are_for_the_exact_rule():
    with pytest.raises(ValueError, match="but the rule 'top_k' is not exact"):
        generate(target("gpt2", torch.float32), [1], "greedy", acceptance=TopKMatch(2),
                 certificate=True)  # fmt: skip


@pytest.mark.parametrize("kind", ["bart", "marian"])
def test_certificate_of_an_encoder_decoder(kind):
    from seq2seq_models import VOCAB as SOURCE_VOCAB
    from seq2seq_models import build

    rng = np.random.default_rng(3)
    sources = [rng.integers(3, SOURCE_VOCAB, size).tolist() for size in (4, 4)]
    model = build(kind)
    for result in generate(model, sources, "mixture", certificate=True, max_new_tokens=9):
        assert result.certificate.verdict == "lossless"
        assert len(result.certificate.margins) == len(result.token_ids)


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODELS = ("llama float32", "llama bfloat16", "mistral float32")  # mistral: a window of 8


@pytest.fixture(scope="module")
def powers() -> Any:
    """The benchmark, and its measurement of each model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        bench = importlib.import_module("certificate_power")

        @functools.cache
        def power(name: str) -> Any:
            return bench.Power(*bench.load(*name.split()), 24)

        yield bench, power


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_faults_above_the_noise_are_caught(powers, name):
    bench, power = powers
    outcomes = [power(name).measure(fault, check=bool(fault.settings)) for fault in bench.FAULTS]
    pairs = [pair for one in outcomes for pair in zip(one.sizes, one.caught, strict=True)]
    large = [is_caught for size, is_caught in pairs if size > 2.5]
    above = [is_caught for size, is_caught in pairs if size > 1.2]
    assert all(large)
    assert sum(above) >= 0.9 * len(above)
    kinds = {one.name for one in outcomes if any(one.caught)}
    assert len(kinds) >= 15
    assert ("window: its last token is missing" in kinds) == name.startswith("mistral")
    assert [one.name for one in outcomes if one.checked is not None] == ["processors are skipped"]
    assert outcomes[-4].checked
    for one in outcomes[-3:]:
        assert one.name.startswith("none")
        assert not any(one.caught)
