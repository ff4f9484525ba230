"""The speculator for vLLM's model runner V2 in a stand-in; `make test-vllm` runs vLLM's own."""
# ruff: noqa: ARG005

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from fake_vllm import VOCAB, CandidateSampler, VllmConfig, config_of, continuation
from lattice_bpd import NGramLM
from lattice_bpd_vllm import runner_v2, support
from lattice_bpd_vllm.runner_v2 import MixtureSpeculator, finish_before_inputs

LENGTH, ROWS, POSITIONS = 3, 4, 64


def text_of(prompt: list[int], count: int) -> list[int]:
    return prompt + continuation(prompt, count)


@pytest.fixture(scope="module")
def lm_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An LM that knows what the target says: three tokens decide about the next one."""
    starts = [[a, b] for a in range(VOCAB) for b in range(VOCAB)]
    texts = [np.array(text_of(start, 40)) for start in starts]
    file = tmp_path_factory.mktemp("lm") / "a.lm"
    NGramLM.train(texts, 4, vocab_size=VOCAB, smoothing="witten_bell").save(file)
    return str(file)


def config(**options: Any) -> SimpleNamespace:
    found = config_of()
    found.additional_config = {"lattice_bpd": {"log_seconds": 0, "check": True, **options}}
    found.speculative_config = SimpleNamespace(
        num_speculative_tokens=LENGTH, use_ngram=lambda: True
    )
    return found


class States:
    """vLLM's `RequestState`."""

    max_num_reqs, max_model_len = ROWS, POSITIONS

    def __init__(self) -> None:
        self.req_id_to_index: dict[str, int] = {}
        shape = (ROWS, POSITIONS)
        self.all_token_ids = SimpleNamespace(gpu=torch.full(shape, 9, dtype=torch.int32))
        self.total_len = SimpleNamespace(gpu=torch.zeros(ROWS, dtype=torch.int32))
        self.prompt_len = SimpleNamespace(np=np.zeros(ROWS, np.int32))
        self.prefill_len = np.zeros(ROWS, np.int32)
        self.computed = np.zeros(ROWS, np.int32)
        self.max_seq_len = np.zeros(ROWS, np.int32)
        self.draft_tokens = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
        self.is_decoding = [False] * ROWS

    def add(self, name: str, text: list[int], num_prompt: int, max_tokens: int = 30) -> int:
        row = next(r for r in range(ROWS) if r not in self.req_id_to_index.values())
        self.req_id_to_index[name] = row
        self.all_token_ids.gpu[row, : len(text)] = torch.tensor(text, dtype=torch.int32)
        self.total_len.gpu[row] = self.prefill_len[row] = len(text)
        self.prompt_len.np[row], self.max_seq_len[row] = num_prompt, num_prompt + max_tokens
        self.computed[row], self.is_decoding[row] = 0, False
        return row

    def text(self, name: str) -> list[int]:
        row = self.req_id_to_index[name]
        tokens: list[int] = self.all_token_ids.gpu[row, : self.total_len.gpu[row]].tolist()
        return tokens


class Runner:
    """vLLM's model runner V2: fixed numbers of drafts, read when the next inputs are prepared."""

    def __init__(self, speculator: Any, states: States, chunk: int = POSITIONS) -> None:
        self.speculator, self.states, self.chunk = speculator, states, chunk
        self.accepted, self.has_grammar = 0, False

    def prepare_inputs(self, names: list[str]) -> torch.Tensor:
        return self.states.draft_tokens[[self.states.req_id_to_index[one] for one in names]].clone()

    def step(self, names: list[str]) -> None:
        drafts = self.prepare_inputs(names).tolist()
        states, counts, scheduled, verified = self.states, [], [], []
        rows = np.array([states.req_id_to_index[one] for one in names])
        computed = states.computed[rows].copy()
        for name, row, draft in zip(names, rows, drafts, strict=True):
            text = states.text(name)
            verified.append(LENGTH if states.is_decoding[row] else 0)
            if not states.is_decoding[row]:
                scheduled.append(min(self.chunk, len(text) - states.computed[row]))
                states.computed[row] += scheduled[-1]
                if states.computed[row] < len(text):
                    counts.append(0)
                    continue
                states.is_decoding[row], draft = True, []
            else:
                scheduled.append(1 + LENGTH)
            right = continuation(text, LENGTH + 1)
            kept = 0
            while kept < len(draft) and draft[kept] == right[kept]:
                kept += 1
            self.accepted += kept
            new = right[: kept + 1]
            states.all_token_ids.gpu[row, len(text) : len(text) + len(new)] = torch.tensor(
                new, dtype=torch.int32
            )
            states.total_len.gpu[row] += len(new)
            states.computed[row] = len(text) + len(new) - 1
            counts.append(len(new))
        index = torch.from_numpy(rows)
        batch = SimpleNamespace(
            num_reqs=len(names), req_ids=names, idx_mapping=index, idx_mapping_np=rows,
            num_computed_tokens_np=computed, num_scheduled_tokens=np.array(scheduled),
            prefill_len_np=states.prefill_len[rows], has_structured_output_reqs=self.has_grammar,
            num_draft_tokens_per_req=np.array(verified) if any(verified) else None,
        )  # fmt: skip
        found = self.speculator.propose(
            batch, None, None, None, None, torch.tensor(counts, dtype=torch.int32), None, None,
            None, None, None, num_speculative_tokens=LENGTH,
        )  # fmt: skip
        states.draft_tokens[index] = found
        if self.has_grammar:  # read at once
            self.grammar_drafts = states.draft_tokens[index].tolist()


def make(chunk: int = POSITIONS, **options: Any) -> tuple[Any, States, MixtureSpeculator]:
    states = States()
    kind: Any = type("Runner", (Runner,), {})
    finish_before_inputs(kind)
    finish_before_inputs(kind)  # changes nothing
    speculator = MixtureSpeculator(config(**options), torch.device("cpu"), states)
    return kind(speculator, states, chunk), states, speculator


@pytest.mark.parametrize("chunk", [2, POSITIONS])
def test_texts_are_the_target_s_and_drafts_are_accepted(chunk: int, lm_file: str) -> None:
    """Requests come and go, take the rows of others, and continue after a preemption."""
    runner, states, speculator = make(chunk, lm=lm_file)
    states.add("a", [1, 2, 3, 4, 5], 5)
    states.add("b", [3, 4], 2)
    for _ in range(3):
        runner.step(["a", "b"])
    del states.req_id_to_index["a"]  # its drafts are not read any more
    row = states.add("c", [7, 7, 2, 4], 4)
    assert row == 0
    for _ in range(3):
        runner.step(["b", "c"])
    text = states.text("b")[:-1]  # a token in flight was dropped
    del states.req_id_to_index["b"]
    states.add("d", [5, 6], 2)
    states.add("b", text, 2)
    for _ in range(4):
        runner.step(["d", "c", "b"])
    for name, prompt in (("b", [3, 4]), ("c", [7, 7, 2, 4]), ("d", [5, 6])):
        assert states.text(name) == text_of(prompt, len(states.text(name)) - len(prompt))
    speculator.finish()
    counters = speculator.counters
    assert counters.failures == 0
    assert counters.accepted_tokens == runner.accepted
    assert runner.accepted > 2 * counters.target_calls  # of 3


@pytest.mark.parametrize("change", [-2, 3])
def test_a_text_that_changes_within_its_row_is_read_again(change: int, lm_file: str) -> None:
    """vLLM drops tokens in flight, or keeps some in a step that was not drafted for."""
    runner, states, speculator = make(lm=lm_file)
    row = states.add("a", [3, 4], 2)
    for _ in range(3):
        runner.step(["a"])
    text = states.text("a")
    text = text[:change] if change < 0 else text + continuation(text, change)
    states.all_token_ids.gpu[row, : len(text)] = torch.tensor(text, dtype=torch.int32)
    states.total_len.gpu[row] = states.prefill_len[row] = len(text)
    before = runner.accepted
    for _ in range(4):
        runner.step(["a"])
    assert states.text("a") == text_of([3, 4], len(states.text("a")) - 2)
    assert runner.accepted - before >= 2 * LENGTH
    speculator.finish()
    assert speculator._token_ids[row, : len(states.text("a"))].tolist() == states.text("a")


def test_structured_outputs_read_their_drafts_at_once(lm_file: str) -> None:
    runner, states, _ = make(lm=lm_file)
    states.add("a", [3, 4], 2)
    runner.has_grammar = True
    runner.step(["a"])
    assert runner.grammar_drafts == [continuation(states.text("a"), LENGTH)]


def test_what_is_not_drafted_is_the_last_token() -> None:
    """A text without repetitions; past the end of the output nothing is searched."""
    runner, states, speculator = make()
    states.add("a", [1, 2, 3], 3, max_tokens=1)
    runner.step(["a"])
    speculator.finish()
    assert states.draft_tokens[0].tolist() == [states.text("a")[-1]] * LENGTH
    assert speculator.counters.draft_tokens == 0


@pytest.mark.parametrize("options", [{"store": ""}, {"draft": "chain", "heads": "."}])
def test_what_runner_v2_cannot_do_is_refused(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "heads" in options:
        parts = SimpleNamespace(heads=object(), draft="chain")
        monkeypatch.setattr(runner_v2, "load_parts", lambda _: parts)
    with pytest.raises(
        ValueError, match=r'"sources": \["lm", "text"\], or the method custom_class'
    ):
        make(**options)


# The seam
def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> str:
    return "vLLM's own"


class Base:
    num_query_per_req = 1

    def propose(
        self, input_batch: Any, attn_metadata: Any, slot_mappings: Any, last_hidden_states: Any,
        aux_hidden_states: Any, num_sampled: Any, num_rejected: Any, last_sampled: Any, more: Any,
    ) -> None:  # fmt: skip
        pass


@pytest.fixture
def seam(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = {}
    for name, values in {
        "vllm": {"__version__": "0.33.0+cpu"},
        "vllm.config": {"VllmConfig": type("VllmConfig", (VllmConfig,), {})},
        "vllm.v1.worker.gpu.spec_decode": {"init_speculator": init_speculator},
        "vllm.v1.worker.gpu.spec_decode.speculator": {"BaseSpeculator": Base},
        "vllm.v1.worker.gpu.model_runner": {
            "GPUModelRunner": type("GPUModelRunner", (Runner,), {}),
            "init_speculator": init_speculator,
        },
    }.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(values)
        monkeypatch.setitem(sys.modules, name, made[name])
    return made["vllm.v1.worker.gpu.model_runner"]


def test_the_plug_in_replaces_vllm_s_n_grams_where_options_are_given(seam: Any) -> None:
    runner_v2.register()
    runner_v2.register()
    assert seam.init_speculator.__wrapped__ is init_speculator  # once
    made = seam.init_speculator(config(), torch.device("cpu"), States())
    assert isinstance(made, Base)
    assert isinstance(made, MixtureSpeculator)
    assert (made.num_query_per_req, made.supports_mm_inputs) == (1, False)
    without, eagle = config(), config()
    without.additional_config = {}
    eagle.speculative_config = SimpleNamespace(method="eagle3", use_ngram=lambda: False)
    for other in (without, eagle):
        assert seam.init_speculator(other, None, None) == "vLLM's own"


# The term in the walk of DFlash2 and LiLiCorr; test_vllm_walk.py has the walk itself
def speculator_with(sampler: Any, **more: Any) -> Any:
    values = {"draft_logits": None, "enable_adaptive_verification": False, **more}
    return type("DFlash2Speculator", (), {"candidate_sampler": sampler, **values})()


def walk_config(**options: Any) -> Any:
    found = config()
    found.additional_config = {"lattice_bpd": options}
    found.speculative_config = SimpleNamespace(method="dflash", use_ngram=lambda: False)
    return found


@pytest.mark.parametrize("draft", [None, "best"])
def test_the_walk_gets_the_texts_and_vllm_the_scores(
    draft: str | None, seam: Any, lm_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[dict[str, Any]] = []

    def walk(lm: Any, ids: Any, scores: Any, texts: Any, rows: Any, lengths: Any, **o: Any) -> Any:
        walked.append({"rows": rows.tolist(), "lengths": lengths.tolist(), **o})
        assert texts is states.all_token_ids.gpu
        return scores.flip(-1), ids[..., 1]

    kernel = ModuleType("lattice_bpd_vllm.lattice_walk")
    kernel.DeviceLM, kernel.walk = SimpleNamespace(of=lambda *_: "lm"), walk  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kernel.__name__, kernel)
    sampler, states = CandidateSampler(2, 2, 3, "cpu"), States()
    speculator = speculator_with(sampler)
    monkeypatch.setattr(
        sys.modules["vllm.v1.worker.gpu.spec_decode"], "init_speculator",
        lambda vllm_config, device, req_states: speculator,
    )  # fmt: skip
    runner_v2.register()
    options = {"lm": lm_file, "alpha": 0.7, "draft": draft}
    assert seam.init_speculator(walk_config(**options), torch.device("cpu"), states) is speculator
    ids = torch.arange(2 * 2 * 3).view(2, 2, 3)
    scores = torch.tensor([1.0, 2.0, 3.0]).expand(2, 2, 3, 3)
    drafts = torch.full((3, 2), -7)
    speculator.candidate_sampler.sample(
        ids, scores, 2, torch.tensor([5, 6, 9, 10, 0, 0]), torch.tensor([3, 3, 1, 1, -1, -1]),
        None, None, drafts, None, False,
    )  # fmt: skip
    assert walked == [
        {"rows": [3, 1], "lengths": [5, 9], "alpha": 0.7, "cache": 0.5, "is_best": draft == "best"}
    ]
    chosen = 0 if draft is None else 1
    assert drafts.tolist() == [*ids[..., chosen].tolist(), [-7, -7]]


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        ({"top_k": 4}, {}, "top_k is given, with DFlash2Speculator expected of lm or directory"),
        ({"draft": "chain"}, {}, "draft is given"),
        ({"heads": "."}, {}, "heads is given"),
        ({"check": True}, {}, "check is given"),
        ({"sources": ["text"]}, {}, r"sources is \['text'\]"),
        ({"sources": ["lm", "heads"]}, {}, r"sources is \['lm', 'heads'\]"),
        ({"sources": ["lm", "target"]}, {}, r"sources is \['lm', 'target'\]"),
        ({"lm": None}, {}, "sources has 'lm', and there is none"),
        ({"lm": ["", ""]}, {}, "found 2 LMs; expected one"),
        ({"draft": "best"}, {"draft_logits": 1}, "no probabilities of its tokens"),
        ({"draft": "best"}, {"enable_adaptive_verification": True}, "no adaptive verification"),
        ({"size": VOCAB + 1}, {}, f"{VOCAB + 1}; expected the same"),
    ],
)
def test_what_the_walk_cannot_use_is_refused(
    options: dict[str, Any], more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, size = tmp_path / "a.lm", options.get("size", VOCAB)
    NGramLM.train([np.arange(8)], 2, vocab_size=size, smoothing="witten_bell").save(path)
    given = {"lm": str(path), **{name: options[name] for name in options if name != "size"}}
    if isinstance(given["lm"], list):
        given["lm"] = [str(path)] * 2
    speculator = speculator_with(CandidateSampler(2, 2, 3, "cpu"), **more)
    with pytest.raises(ValueError, match=message):
        runner_v2.add_term(speculator, walk_config(**given), "cpu", States(), "0.33.0")


def test_other_drafters_and_other_releases_are_refused(lm_file: str) -> None:
    arguments = walk_config(lm=lm_file), "cpu", States(), "0.33.0"
    with pytest.raises(ValueError, match="DFlash2Speculator has no transition scores to add"):
        runner_v2.add_term(speculator_with(None), *arguments)
    other = type("New", (), {"sample": lambda self, ids: None})
    with pytest.raises(ImportError, match=r"has the parameters \(self, ids\); expected \(self, "):
        runner_v2.add_term(speculator_with(other()), *arguments)


# Options that nothing reads
OURS, OTHER = "lattice_bpd_vllm.LatticeProposer", "mine.Proposer"
METHODS = (  # of 0.32 and 0.33; several mtp
    "ngram", "ngram_gpu", "medusa", "mlp_speculator", "draft_model", "suffix", "custom_class",
    "eagle", "eagle3", "extract_hidden_states", "mtp", "deepseek_mtp", "dflash", "dspark",
)  # fmt: skip


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("method", [*METHODS, None])
def test_options_that_no_drafter_of_ours_reads_are_logged(
    method: str | None, is_v2: bool, seam: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runner_v2.register()
    runner_v2.register()
    kind: Any = sys.modules["vllm.config"].VllmConfig  # type: ignore[attr-defined]
    support._warn_once.cache_clear()
    speculative = None if method is None else SimpleNamespace(method=method, model=OURS)
    is_used = method == "custom_class" or (is_v2 and method in ("ngram", "ngram_gpu", "dflash"))
    for _ in range(2):  # vLLM copies it
        kind({"lattice_bpd": {}, "gdn_prefill_backend": "triton"}, speculative, is_v2)
    if method != "custom_class":
        kind({}, speculative, is_v2)
    assert len(caplog.records) == (0 if is_used else 1)
    assert is_used or 'ignored; expected --speculative-config \'{"method": "custom_class"' in (
        caplog.text
    )
    assert is_used or (repr(method) if method else "no --speculative-config") in caplog.text
    kind({"lattice_bpd": {}}, SimpleNamespace(method="custom_class", model=OTHER), is_v2)
    assert "custom_class is mine.Proposer" in caplog.text


@pytest.mark.parametrize(
    ("additional", "message"),
    [
        ({}, "additional_config has none; expected an object"),
        ({"lattice_bpd": "my-drafter"}, "options are 'my-drafter'; expected an object"),
        ({"lattice_bpd": {"directry": "a"}}, "'directry'; did you mean 'directory'"),
        ({"lattice_bpd": {"draft": "tree"}}, "draft is 'tree'; expected one of mixture"),
    ],
)
@pytest.mark.parametrize("method", ["custom_class", "ngram_gpu"])
def test_wrong_options_are_refused_before_an_engine_starts(
    additional: dict[str, Any], message: str, method: str, seam: Any
) -> None:
    runner_v2.register()
    kind: Any = sys.modules["vllm.config"].VllmConfig  # type: ignore[attr-defined]
    speculative = SimpleNamespace(method=method, model=OURS)
    if additional or method == "custom_class":
        with pytest.raises((TypeError, ValueError), match=message):
            kind(additional, speculative, method == "ngram_gpu")
    kind({"lattice_bpd": {"lm": "a.lm"}}, speculative, method == "ngram_gpu")
    kind(additional, SimpleNamespace(method="medusa", model=OURS), False)


def test_heads_among_the_weights_of_the_model_are_refused(
    seam: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would not find their parameters in the model; with an index it reads what that lists."""
    runner_v2.register()
    kind: Any = sys.modules["vllm.config"].VllmConfig  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "model_config", SimpleNamespace(model=str(tmp_path)))
    given: dict[str, Any] = {"lattice_bpd": {}}
    speculative = SimpleNamespace(method="custom_class", model=OURS)
    kind(given, speculative)
    (tmp_path / "heads.json").write_text("{}")
    with pytest.raises(ValueError, match="has draft heads, which vLLM would load as weights"):
        kind(given, speculative)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    kind(given, speculative)


@pytest.mark.parametrize("name", ["lattice-bpd", "latice_bpd", "Lattice_BPD", "lm", "directory"])
def test_options_at_a_wrong_place_are_logged(name: str) -> None:
    for others in ({}, {"lattice_bpd": {}}):
        config = VllmConfig({name: {}, **others}, SimpleNamespace(method="ngram"))
        (line,) = support.unused_options(config)
        assert f'has {name!r}, which is not read; expected options in {{"lattice_bpd"' in line
    assert support.unused_options(VllmConfig(object())) == []
