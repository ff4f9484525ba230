"""Lossless certificates: bounds against all measured differences, verdicts, files."""

from __future__ import annotations

import copy
import functools
import json

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from blockwise_models import ARCHITECTURES, VOCAB, model_of
from lattice_bpd.decode import CertificateError, Drafter, decode, generate
from lattice_bpd.decode.certificate import CheckedPosition
from lattice_bpd.decode.certificate import certificate as certificates
from lattice_bpd.decode.certificate.certificate import MarginSelector, certify
from lattice_bpd.decode.certificate.plain_calls import (
    PlainCalls,
    difference_of,
    margin_of,
    scale_of,
)
from lattice_bpd.decode.loop import loop as loops
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.models.lm_call import LMOutput
from lattice_bpd.verify import PrefixTree
from lattice_bpd.verify import target as targets
from lattice_bpd.verify.acceptance import TopKMatch
from lattice_bpd.verify.verification import DraftCandidates

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


def test_rounding_is_measured_where_calls_have_drafts():
    selector = MarginSelector()
    for index in range(60):
        drafts = DraftCandidates([1], 0) if index % 2 and index > 20 else DraftCandidates((), 0)
        selector.choose(torch.tensor([0.0, 1.0]), drafts)
    assert sorted(selector.rows) == [*range(16), *range(21, 53, 2)]
    base = target("llama", torch.float32)
    output = plain_greedy(base, [3, 17, 5], 40)

    class Late(HalfRight):
        def draft(self, state):
            return super().draft(state) if len(state.tokens) > 23 else None

    given = decode(
        base, [3, 17, 5], Late(output, 3), max_new_tokens=40, certificate=True
    ).certificate  # fmt: skip
    assert given.plain_calls > 30
    assert given.rounding > given.eps


class KeepsRows(MarginSelector):
    """Remembers all logits, not only those that rounding is measured on."""

    seen: list[KeepsRows]

    def __init__(self) -> None:
        super().__init__()
        self.all_rows: list[np.ndarray] = []
        self.seen.append(self)

    def choose(self, logits, candidates):
        self.all_rows.append(logits.float().numpy().copy())
        return super().choose(logits, candidates)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [*ARCHITECTURES, "deep gpt2", "deep llama"])
def test_no_difference_of_calls_exceeds_the_bound_of_the_certificate(
    kind, dtype, layout, monkeypatch
):
    monkeypatch.setattr(KeepsRows, "seen", [], raising=False)
    monkeypatch.setattr(loops, "MarginSelector", KeepsRows)
    base = target(kind, dtype)
    results, _ = with_certificates(base, random_prompts(2, seed=1), count=32, layout=layout)
    largest, compared = 0.0, 0
    for result, selector in zip(results, KeepsRows.seen, strict=True):
        plain = PlainCalls(base, result.certificate.prompt_token_ids, result.token_ids)
        with torch.no_grad():
            for index, bound in enumerate(result.certificate.bounds):
                row, other = selector.all_rows[index], plain.advance_to(index)
                largest = max(largest, float(np.abs(row - other).max()) * 2 / bound)
                token = result.token_ids[index]
                assert abs(margin_of(row, token) - margin_of(other, token)) <= bound
                compared += 1
    assert compared == 64
    assert 0.0 < largest <= 1.0 or (dtype == torch.bfloat16 and largest == 0.0)


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
    assert len(certificate.margins) == len(certificate.bounds) == 40
    assert (certificate.dtype, certificate.device, certificate.batch_size) == ("float32", "cpu", 1)
    assert ("prompt", 1, 3) in certificate.shapes
    assert {shape[0] for shape in certificate.shapes} == {"prompt", "tree", "rows"} - {"rows"}
    assert certificate.plain_calls == 17  # the exact token and 16 after drafts; no margin is small
    assert min(certificate.margins) > max(certificate.bounds)
    assert certificate.checked == []
    logits = base(torch.tensor([[3, 17, 5, *result.token_ids[:9]]])).logits[0, -1].detach()
    best = logits.topk(2).values
    assert certificate.margins[9] == pytest.approx(float(best[0] - best[1]), abs=1e-4)
    assert certificate.bounds[9] == pytest.approx(
        certificate.tolerance * float(logits.abs().max()), rel=1e-3
    )
    eps, terms = 2.0**-23, 128  # the widest sum: GPT-2's inner layer of 4 x 32
    by_hand = 4 * np.sqrt(2 * 2 + 1) * (eps + np.sqrt(terms) * eps)
    assert certificate.tolerance == pytest.approx(by_hand)
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
    assert (given.verdict, given.plain_calls) == ("lossless", 20)


def test_stop_tokens_end_certificates():
    base = target("gpt2", torch.float32)
    output = plain_greedy(base, [3, 17, 5], 20)
    stop = output[7]
    result = decode(
        base, [3, 17, 5], HalfRight(output, 3), max_new_tokens=20, stop_token_ids=[stop],
        certificate=True,
    )  # fmt: skip
    assert result.finish == "stop_token"
    assert len(result.certificate.margins) == len(result.token_ids) == output.index(stop) + 1


def certificate_of(token_ids: list[int], margins: list[float] | None = None):
    """A certificate of a text that is given, with margins as they are or made up."""
    model, selector = DraftingModel(target("gpt2", torch.float32)), MarginSelector()
    with torch.no_grad():
        plain = PlainCalls(model.target.base, [3, 17, 5], token_ids)
        for index in range(len(token_ids)):
            selector.choose(torch.tensor(plain.advance_to(index)), DraftCandidates((), 0))
    selector.margins = margins or selector.margins
    return certify(model, [3, 17, 5], token_ids, selector, {("rows", 1, 1)}, 1)


def test_certificate_of_a_wrong_text_says_so():
    right = plain_greedy(target("gpt2", torch.float32), [3, 17, 5], 12)
    assert certificate_of(right).verdict == "lossless"
    wrong = [*right[:6], (right[6] + 1) % VOCAB, *right[7:]]
    assert certificate_of(wrong).verdict == "different"
    small = certificate_of(wrong, [0.0] * 12)  # as if every lead had been nothing
    assert small.verdict == "different"
    assert small.checked[6].plain_token_id == right[6]
    assert small.checked[6].plain_margin < -small.checked[6].bound
    small.checked = [CheckedPosition(4, 7, 0.1, 0.5, 8, -0.2)]
    assert certificates._verdict(small, set()) == "tie"
    assert certificates._verdict(small, {3}) == "different"
    small.rounding = 0.51 * small.tolerance
    assert certificates._verdict(small, set()) == "different"


def test_margins_by_hand():
    row = np.array([1.0, -7.0, 3.0, 2.5, -np.inf], np.float32)
    assert (margin_of(row, 2), margin_of(row, 3), scale_of(row)) == (0.5, -0.5, 7.0)
    assert margin_of(row[:1], 0) == np.inf
    other = np.array([1.0, -6.3, 3.0, 2.5, -np.inf], np.float32)
    assert difference_of(row, other) == pytest.approx(0.1)


def test_certificate_as_a_file(tmp_path):
    (result,), _ = with_certificates(target("gpt2", torch.bfloat16), [[3, 17, 5]], count=9)
    path = tmp_path / "text.json"
    result.certificate.save(path)
    content = json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("lattice-bpd certificate", 2)
    assert content["token_ids"] == result.token_ids
    assert content["margins"] == result.certificate.margins
    assert content["below_bound"] == len(content["checked"])
    assert content["verdict"] in ("lossless", "tie")
    assert "sqrt(2 layers + 1)" in content["formula"]
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
    with pytest.raises(CertificateError, match="by more than rounding: the logits differ"):
        with_certificates(base, random_prompts(batch, seed=4), count=12)
    prompts = random_prompts(batch, seed=4)
    results, outputs = with_certificates(base, prompts, count=12, certificate="report")
    wrong = 0
    for result, output in zip(results, outputs, strict=True):
        assert result.certificate.verdict == "different"
        wrong += result.token_ids != output
        bound, right_bound = (r[0].certificate.tolerance for r in (results, right))
        assert bound == right_bound  # it does not grow with what was measured
    assert (wrong > 0) == (how == "layer")  # a scale leaves the argmax as it is


def test_certificate_takes_true_false_or_report():
    with pytest.raises(ValueError, match="certificate is 'yes'; expected True, False or 'report'"):
        generate(target("gpt2", torch.float32), [1], "greedy", certificate="yes")


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
