"""Certificates: differences and noise against plain forwards, verdicts, files, planted faults."""

from __future__ import annotations

import copy
import functools
import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from blockwise_models import ARCHITECTURES, CACHE_NAME, VOCAB, model_of, random_prompts
from lattice_bpd.decode import Certificate, CertificateError, decode, generate
from lattice_bpd.decode.certificate import certificate as certificates
from lattice_bpd.decode.certificate import noise as noise_module
from lattice_bpd.decode.certificate.certificate import CheckedPosition, MarginSelector
from lattice_bpd.decode.certificate.noise import Noise, follow_text
from lattice_bpd.decode.loop import decode as loops
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.models.forward import LMOutput
from lattice_bpd.verify import target as targets
from lattice_bpd.verify.acceptance import TopKMatch
from lattice_bpd.verify.greedy import DraftCandidates
from planted_drafts import PlantedDrafts, plain_continuation, randomize


@functools.cache
def target(kind: str, dtype: torch.dtype):
    """A target of the tests' architectures, or a deeper one."""
    if kind in ARCHITECTURES:
        return copy.deepcopy(model_of(kind).base).to(dtype)
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    base = LlamaForCausalLM(config)
    randomize(base, 0.15)
    return base.eval().to(dtype)


def with_certificates(base, prompts, count=40, **options):
    outputs = [plain_continuation(base, prompt, max_new_tokens=count) for prompt in prompts]
    drafters = [PlantedDrafts(output, VOCAB) for output in outputs]
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


@pytest.mark.parametrize("layout", ["tree", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["gemma2", "deep llama"])
def test_all_logits_are_compared_and_verdicts_are_right(kind, dtype, layout, monkeypatch):
    """Against forwards of one token each, and the model's own `generate`."""
    monkeypatch.setattr(KeepsRows, "seen", [], raising=False)
    monkeypatch.setattr(loops, "MarginSelector", KeepsRows)
    base = target(kind, dtype)
    results, outputs = with_certificates(base, random_prompts(4, seed=2), count=32, layout=layout)
    for result, output, selector in zip(results, outputs, KeepsRows.seen, strict=True):
        given = result.certificate
        own = own_logits(base, given.prompt_token_ids, result.token_ids)
        ours = torch.stack([selector.rows[index].float() for index in range(32)])
        largest = (ours - own).abs().amax(dim=1)
        assert given.compared == 32
        assert given.difference == pytest.approx(float(largest.max()), rel=0.1)
        assert given.mean_difference == pytest.approx(float(largest.mean()), rel=0.1)
        assert given.beyond == []
        assert given.mean_difference <= given.noise.mean_bound
        if result.token_ids == output:
            assert given.verdict == "lossless"
            continue
        assert (given.verdict, dtype) == ("tie", torch.bfloat16)
        pairs = enumerate(zip(result.token_ids, output, strict=True))
        index = next(number for number, (ours, theirs) in pairs if ours != theirs)
        apart = next(checked for checked in given.checked if not checked.agrees)
        assert (apart.position, apart.plain_token_id) == (index, output[index])
        assert apart.plain_margin <= 0.0
    assert min(result.stats.target_calls for result in results) < 16  # drafts were accepted


@torch.no_grad()
def test_noise_is_that_of_plain_forwards():
    base, prompt = target("deep llama", torch.bfloat16), [3, 17, 5]
    text = plain_continuation(base, prompt, max_new_tokens=40)
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
    assert 0.0 < noise.margins <= noise.logits
    bounds = noise.logit_bound, noise.mean_bound, noise.margin_bound
    least = max(noise.margins, noise.unit)
    assert bounds == (2.5 * noise.logits, 1.3 * max(noise.mean, noise.unit), 2.5 * least)


@pytest.mark.parametrize("kind", ["deep llama", "mistral", "gemma2"])
def test_noise_of_replayed_calls_is_that_of_a_cache_of_fixed_size(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read all positions of their buffers; `forward` does so with transformers' cache."""
    sizes = []

    class Static(StaticCache):
        def __init__(self, **given: object) -> None:
            super().__init__(**given)
            sizes.append(given["max_cache_len"])

    monkeypatch.setattr(noise_module, "is_recordable", lambda _device: True)
    monkeypatch.setattr(noise_module, "StaticCache", Static)
    base, prompt = target(kind, torch.float32), [3, 17, 5]
    text = plain_continuation(base, prompt, max_new_tokens=40)
    noise = follow_text(DraftingModel(base).target, prompt, text, [4, 1])[1]
    assert noise.shapes[-1] == "chunks of 4, static cache"
    assert sizes == [1024]
    assert noise.logit_bound < 200 * noise.unit  # the logits are right


def test_noise_is_measured_in_all_shapes_of_learned_positions():
    """Positions outside of their table would fail, wrong ones differ by more than rounding."""
    base, prompt = target("gpt2", torch.float32), [3, 17, 5]
    text = plain_continuation(base, prompt, max_new_tokens=20)
    _, noise = follow_text(DraftingModel(base).target, prompt, text, [2, 1])
    assert noise.shapes == ["one call", "3 copies", "padded", "chunks of 2"]
    assert noise.logits < 1e-4


def test_verdicts_by_hand():
    (result,), _ = with_certificates(target("gpt2", torch.float32), [[3, 17, 5]], count=20)
    given = result.certificate
    given.noise = Noise(0.5, mean=0.2, margins=0.25, unit=0.125, positions=[0, 4, 5, 6],
                        local=[0.1, 0.4, 0.5, 0.9], shapes=["a", "b", "c"])  # fmt: skip
    assert given.noise.logit_bounds() == {0: 0.75, 4: 1.0, 5: 1.25, 6: 1.25}
    for mean, margin, beyond, compared, verdict in (
        (0.26, None, [], 20, "lossless"),
        (0.26, -0.625, [], 20, "tie"),
        (0.26, -0.63, [], 20, "different"),
        (0.26, None, [3], 20, "different"),
        (0.27, None, [], 20, "different"),
        (0.27, None, [], 15, "lossless"),  # too few for a mean
    ):
        given.mean_difference, given.beyond, given.compared = mean, beyond, compared
        given.checked = [] if margin is None else [CheckedPosition(4, 7, 0.1, 8, margin)]
        assert certificates._verdict(given) == verdict


def test_noise_of_the_kernels_counts_up_to_a_limit():
    own = Noise(0.5, mean=0.2, margins=0.0, unit=0.125, positions=[0, 4], local=[0.1, 0.4],
                shapes=["a"])  # fmt: skip
    with_some = own.with_kernels(
        Noise(0.75, mean=0.1, margins=0.2, unit=0.125, positions=[0, 4], local=[0.2, 0.3],
              shapes=["a"])
    )  # fmt: skip
    assert (with_some.logits, with_some.mean, with_some.margins) == (0.75, 0.2, 0.2)
    assert with_some.local == [0.2, 0.4]
    assert with_some.shapes == ["a", "a, kernels of the core"]
    wrong = Noise(9.0, mean=9.0, margins=9.0, unit=0.125, positions=[0, 4], local=[9.0, 9.0],
                  shapes=["a"])  # fmt: skip
    limited = own.with_kernels(wrong)
    assert (limited.logits, limited.mean, limited.margins) == (1.0, 0.4, 0.25)
    assert limited.local == [0.25, 0.8]


def test_certificate_as_a_file(tmp_path):
    (result,), _ = with_certificates(target("gpt2", torch.bfloat16), [[3, 17, 5]], count=9)
    path = tmp_path / "text.json"
    result.certificate.save(path)
    content = json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("lattice-bpd certificate", 4)
    assert Certificate.load(path) == result.certificate
    assert [p.name for p in tmp_path.iterdir()] == ["text.json"]


@pytest.mark.parametrize("batch", [1, 2])
def test_a_wrong_fast_call_fails_the_certificate(batch, monkeypatch):
    base, prompts = target("deep llama", torch.float32), random_prompts(batch, seed=4)
    right, outputs = with_certificates(base, prompts, count=12)

    def scaled(base, embedding, inputs, feature_layers=()):
        hidden = base.base_model(**inputs).last_hidden_state * 1.01
        return LMOutput(embedding(hidden), hidden)  # the argmax is right, the logits are not

    monkeypatch.setattr(targets, "call_inner", scaled)
    with pytest.raises(CertificateError, match="by more than rounding: logits differ"):
        with_certificates(base, prompts, count=12)
    results, _ = with_certificates(base, prompts, count=12, certificate="report")
    for result, output, before in zip(results, outputs, right, strict=True):
        assert (result.token_ids, result.certificate.verdict) == (output, "different")
        assert before.certificate.verdict == "lossless"
        assert result.certificate.noise == before.certificate.noise  # nor do the bounds grow


def test_certificates_are_for_the_exact_rule():
    with pytest.raises(ValueError, match="but the rule 'top_k' is not exact"):
        generate(target("gpt2", torch.float32), [1], "greedy", acceptance=TopKMatch(2),
                 certificate=True)  # fmt: skip


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.filterwarnings("ignore")
def test_faults_above_the_noise_are_caught(monkeypatch):
    """Mistral has a window of 8 tokens."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bench = importlib.import_module("certificate_power")
    power = bench.Power(*bench.load("mistral", "float32"), 24)
    outcomes = [power.measure(fault, check=bool(fault.settings)) for fault in bench.FAULTS]
    pairs = [pair for one in outcomes for pair in zip(one.sizes, one.caught, strict=True)]
    assert all(is_caught for size, is_caught in pairs if size > 2.5)
    kinds = {one.name for one in outcomes if any(one.caught)}
    assert len(kinds) >= 15
    assert "window: its last token is missing" in kinds
    assert not any(any(one.caught) for one in outcomes if one.name.startswith("none"))


def test_rows_are_kept_while_they_fit(monkeypatch):
    monkeypatch.setattr(certificates, "_ROW_BYTES", 4 * 2 * 10)
    selector = MarginSelector()
    for index in range(50):
        selector.choose(torch.tensor([0.0, float(index)]), DraftCandidates((), 0))
    assert sorted(selector.rows) == [0, 8, 16, 24, 32, 40, 48]
    assert all(float(row[1]) == index for index, row in selector.rows.items())
    assert len(selector.margins) == 50
