"""The plug-in for SGLang: trees as its NGRAM worker verifies them, and texts as the target's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_sglang import Target, decode, sglang
from lattice_bpd import NGramLM
from lattice_bpd_sglang.trees import DraftTrees, Request, read_options
from target_models import PROMPTS, VOCAB, build_target

NODES = 8
SOURCES = [None, *([os.environ["SGLANG_SOURCES"]] if "SGLANG_SOURCES" in os.environ else [])]


def make_trees(nodes: int = NODES, **options: Any) -> DraftTrees:
    return DraftTrees(read_options({"LATTICE_BPD_SGLANG": json.dumps(options)}), VOCAB, nodes)


def request(name: str, text: list[int], tenant: str = "", tail: int = 3) -> Request:
    return Request(name, len(text), text[-tail:], lambda: text, tenant)


def paths(tokens: Any, mask: Any, nodes: int = NODES) -> list[list[list[int]]]:
    """Of each request the path of each node, the root's token first."""
    rows, masks = tokens.reshape(-1, nodes), mask.reshape(-1, nodes, nodes)
    return [[row[above].tolist() for above in one] for row, one in zip(rows, masks, strict=True)]


@pytest.mark.parametrize("nodes", [2, 3, 8, 17])
def test_trees_are_those_that_sglang_verifies(nodes: int) -> None:
    rng, trees = np.random.default_rng(nodes), make_trees(nodes)
    texts = {f"r{n}": rng.integers(0, 6, 20 + n).tolist() for n in range(4)}
    texts["new"] = [40, 41, 42]  # without a draft at first
    for _ in range(6):
        tokens, mask = trees.draft([request(name, text) for name, text in texts.items()])
        assert (tokens.dtype, tokens.shape) == (np.int64, (5 * nodes,))
        assert (mask.dtype, mask.shape) == (np.bool_, (5 * nodes * nodes,))
        assert not np.triu(mask.reshape(5, nodes, nodes), 1).any()  # parents first
        for text, of_nodes in zip(texts.values(), paths(tokens, mask, nodes), strict=True):
            assert {path[0] for path in of_nodes} == {text[-1]}
            assert len(set(map(tuple, of_nodes))) == nodes  # siblings differ
            assert {tuple(path[:-1]) for path in of_nodes[1:]} <= set(map(tuple, of_nodes))
        for text in texts.values():
            text += rng.integers(0, 6, int(rng.integers(1, nodes + 1))).tolist()


def test_texts_are_read_once_whatever_the_tail_has() -> None:
    """Short tails, a request that starts anew, and whole texts give the same trees."""
    text = np.random.default_rng(0).integers(0, 5, 60).tolist()
    trees, asked = make_trees(), 0

    def whole() -> list[int]:
        nonlocal asked
        asked += 1
        return text[:length]

    for length in (20, 22, 25, 40, 41, 30, 31):
        tokens, mask = trees.draft([Request("a", length, text[length - 4 : length], whole)])
        fresh = make_trees().draft([request("b", text[:length])])
        assert paths(tokens, mask)[0][0] == [text[length - 1]]
        assert {*map(tuple, paths(tokens, mask)[0])} & {*map(tuple, paths(*fresh)[0])}
    assert asked == 3  # at the start, where 15 tokens are new, and where the text is shorter


def test_served_texts_are_drafted_from_by_tenant(tmp_path: Path) -> None:
    """And what an n-gram LM knows is drafted for all."""
    served = [30, 31, 32, 33, 34, 35]
    cycle = [3, 1, 4, 7, 5, 9, 2, 6]
    lm = NGramLM.train([cycle * 50], 4, vocab_size=VOCAB, smoothing="witten_bell")
    lm.save(tmp_path / "own.lm")
    trees = make_trees(store="", lm=str(tmp_path / "own.lm"))
    trees.draft([request("a", served, "x"), request("b", [50, 51, 52, 53], "y")])
    trees.forget({"a", "b"})
    requests = [request("c", [30, 31], "x"), request("d", [30, 31], "y"), request("e", [9, 3])]
    mine, others, new = paths(*trees.draft(requests))
    assert [3, 1, 4, 7, 5] in [path[:5] for path in new]
    assert [31, 32, 33] in mine
    assert [31, 32] not in others


def test_an_error_costs_the_drafts_of_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    trees = make_trees()
    for _ in range(2):
        tokens, mask = trees.draft([Request("a", 3, [5, -7], lambda: [4, 5, -7])])
        assert paths(tokens, mask)[0] == [[-7] + [0] * n for n in range(NODES)]
    assert caplog.text.count("drafting failed") == 1
    tokens, mask = trees.draft([request("a", [4, 5, 4, 5])])
    assert [5, 4, 5] in paths(tokens, mask)[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "expected an object"),
        ('{"heads": "x"}', "option 'heads'; expected some of directory, lm"),
        ('{"lm": 3}', "lm is 3; expected a file"),
        ('{"sources": ["heads"]}', "sources has 'heads', which are not read"),
    ],
)
def test_options_are_checked(text: str, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        read_options({"LATTICE_BPD_SGLANG": text})


def test_lms_of_another_target_and_small_trees_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.lm"
    NGramLM.train([[1, 2]], 2, vocab_size=VOCAB + 1, smoothing="witten_bell").save(path)
    found = rf"LM .*other\.lm has a vocabulary of {VOCAB + 1}, the target of {VOCAB}"
    with pytest.raises(ValueError, match=found):
        make_trees(lm=str(path))
    with pytest.raises(ValueError, match="expected --speculative-num-draft-tokens 2 or more"):
        make_trees(1)


@pytest.fixture
def plain() -> Callable[[Any, list[int], int], list[int]]:
    def generate(model: Any, prompt: list[int], count: int) -> list[int]:
        import torch

        output: Any = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=count, use_cache=True
        )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    return generate


@pytest.mark.parametrize("sources", SOURCES, ids=lambda one: "sources" if one else "stand-in")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_texts_are_the_target_s_own(
    sources: str | None, overlap: bool, on_cpu: bool, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fewer calls; requests of different lengths, two batches one after the other."""
    monkeypatch.setenv("LATTICE_BPD_SGLANG", '{"store": ""}')
    model = build_target("llama")
    args: Any = SimpleNamespace(
        speculative_num_draft_tokens=NODES, disable_overlap_schedule=not overlap
    )
    with sglang(sources, overlap=overlap, nodes=NODES, on_cpu=on_cpu) as worker:
        target = Target(model, NODES)
        own = worker.LatticeWorker(args, 0, 0, target)
        own.alloc_memory_pool()
        for batch in ({f"a{n}": one for n, one in enumerate(PROMPTS)}, {"b": PROMPTS[1]}):
            target.calls = 0
            texts = decode(own, batch, 24)
            for name, prompt in batch.items():
                assert texts[name] == plain(model, prompt, 24), name
            assert target.calls < 24
    assert target.calls < 12  # the prompt of "b" was served before


@pytest.mark.parametrize("sources", SOURCES, ids=lambda one: "sources" if one else "stand-in")
def test_the_algorithm_is_registered_once(sources: str | None) -> None:
    with sglang(sources, overlap=True, nodes=NODES) as worker:
        for _ in range(2):
            worker.register_algorithm()
        algorithm = worker.SpeculativeAlgorithm.from_string(worker.NAME)
        assert algorithm.is_ngram()
        assert not algorithm.has_draft_kv()
        assert algorithm.create_worker(SimpleNamespace(disable_overlap_schedule=False)) is not None


def test_server_arguments_are_those_of_ngram() -> None:
    def resolve(**given: Any) -> Any:
        args = SimpleNamespace(
            speculative_num_draft_tokens=None, speculative_num_steps=None, device="cuda",
            speculative_ngram_max_bfs_breadth=10, max_running_requests=None, page_size=1,
            attention_backend="triton", enable_dp_attention=False, enable_mixed_chunk=True,
            speculative_ngram_external_corpus_path=None, disable_overlap_schedule=False,
        )  # fmt: skip
        vars(args).update(given)
        with sglang(None, overlap=True, nodes=NODES) as worker:
            worker.LatticeAlgorithm("X", None).handle_server_args(args)
        return args

    args = resolve()
    assert (args.speculative_num_draft_tokens, args.max_running_requests) == (12, 48)
    assert (args.enable_mixed_chunk, args.disable_overlap_schedule) == (False, False)
    assert resolve(device="cpu").disable_overlap_schedule
    assert resolve(page_size=64, attention_backend="flashinfer").page_size == 64
    with pytest.raises(ValueError, match="expected --page-size 1, or"):
        resolve(page_size=64)
    with pytest.raises(ValueError, match="DP attention"):
        resolve(enable_dp_attention=True)


def test_another_worker_is_refused() -> None:
    with sglang(None, overlap=True, nodes=NODES) as worker:
        worker.NGRAMWorker = type("NGRAMWorker", (), {"__init__": repr})
        with pytest.raises(ImportError, match=r"NGRAMWorker.__init__ of SGLang 0.5.23 .*0.5.23"):
            worker.register_algorithm()
