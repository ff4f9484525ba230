"""The parts of the vLLM plug-in that need no engine: rows, batches, chains, options, files."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import DraftConfig, NGramLM, rescore_lattice
from lattice_bpd.decode.strategies import DrafterFile
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import BlockDrafterConfig, SelectorConfig
from lattice_bpd_drafters.medusa import MedusaHeads
from lattice_bpd_vllm.batch import EngineStep, select_requests
from lattice_bpd_vllm.drafting import LatticeDrafter
from lattice_bpd_vllm.files import load_parts
from lattice_bpd_vllm.head_logits import HeadLogits
from lattice_bpd_vllm.options import DrafterOptions
from lattice_bpd_vllm.rows import rows_of_last_tokens


def test_without_verification_each_request_has_one_row() -> None:
    assert rows_of_last_tokens([0, 2], [1, 0, 1], None) == [0, 2]
    with pytest.raises(ValueError, match="request 0 kept 2 tokens without drafts; expected 1"):
        rows_of_last_tokens([0], [2], None)


@pytest.mark.parametrize("kept", [0, 4])
def test_more_tokens_than_rows_are_an_error(kept: int) -> None:
    with pytest.raises(ValueError, match=rf"request 1 kept {kept} tokens .* expected 1\.\.3"):
        rows_of_last_tokens([1], [1, kept], [0, 2])


# Batches
def step_of(
    kept: list[list[int]], lengths: list[int], prompts: list[int], limits: list[int | None],
    most: int,
) -> EngineStep:  # fmt: skip
    token_ids = np.arange(100 * len(lengths)).reshape(len(lengths), 100)
    return EngineStep(
        kept, token_ids, np.array(lengths), np.array(prompts), limits, 100, most, torch.empty(0),
        None, [], [],
    )  # fmt: skip


def test_requests_without_tokens_are_left_out() -> None:
    step = step_of([[5], [], [7, 8]], [4, 6, 2, 9], [3, 6, 1, 8], [None] * 4, 9)
    batch = select_requests(step, 3, 3)
    assert batch.requests == [0, 2]
    assert batch.contexts == [[1, 2, 3], [200, 201]]
    assert batch.max_lengths == [3, 3]
    assert batch.exact_tokens == [3, 201]
    assert select_requests(step, 0, 3).requests == []
    assert select_requests(step._replace(max_draft_tokens=2), 3, 3).max_lengths == [2, 2]
    assert select_requests(step._replace(max_draft_tokens=0), 3, 3).requests == []


def test_drafts_end_before_every_limit() -> None:
    step = step_of(
        [[1]] * 7, [10, 10, 10, 10, 99, 98, 10], [8, 8, 8, 8, 1, 1, 8],
        [20, 5, 3, None, None, 500, 0], 8,
    )  # fmt: skip
    batch = select_requests(step, 8, 3)
    # one token is always kept besides the draft: 20 - 2 - 1, 5 - 2 - 1, .., 100 - 98 - 1
    assert dict(zip(batch.requests, batch.max_lengths, strict=True)) == {0: 8, 1: 2, 3: 8, 5: 1}


# Chains
@pytest.fixture(scope="module")
def lm() -> NGramLM:
    text = np.random.default_rng(0).integers(0, 12, size=4000)
    return NGramLM.train([text], 3, vocab_size=12, smoothing="witten_bell")


def prefix_masses(
    logits: np.ndarray, context: list[int], lm: NGramLM | None, config: DraftConfig
) -> dict[tuple[int, ...], float]:
    """Probabilities of all prefixes of the lattice's paths, by enumeration."""
    slots = [np.argsort(-row, kind="stable")[: config.top_k].tolist() for row in logits]
    paths = list(itertools.product(*slots))
    scores = []
    for path in paths:
        score = sum(float(row[token]) for row, token in zip(logits, path, strict=True))
        if lm is not None:
            score += config.alpha * sum(
                lm.log_prob(token, [*context, *path[:depth]]) for depth, token in enumerate(path)
            )
        scores.append(score / config.temperature)
    weights = np.exp(np.array(scores) - max(scores))
    weights /= weights.sum()
    masses: dict[tuple[int, ...], float] = {}
    for path, weight in zip(paths, weights, strict=True):
        for depth in range(1, len(path) + 1):
            masses[path[:depth]] = masses.get(path[:depth], 0.0) + float(weight)
    return masses


@pytest.mark.parametrize("with_lm", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_chains_have_the_greatest_expected_accept_length(
    seed: int, with_lm: bool, lm: NGramLM, rng: np.random.Generator
) -> None:
    config = DraftConfig("chain", top_k=3, alpha=0.7, temperature=1.5)
    model = lm if with_lm else None
    logits = rng.normal(size=(5, 4, 12)).astype(np.float32) * 2
    contexts = rng.integers(0, 12, size=(5, 2)).tolist()
    whole = LatticeDrafter(model, config, "chain").propose(logits, contexts, [4] * 5)
    for row, context, chain in zip(logits, contexts, whole, strict=True):
        masses = prefix_masses(row, context, model, config)
        prefixes = {
            path: [masses[path[: n + 1]] for n in range(4)] for path in masses if len(path) == 4
        }
        best = max(prefixes, key=lambda path: sum(prefixes[path]))
        assert tuple(chain) == best


def test_best_path_and_argmax(lm: NGramLM, rng: np.random.Generator) -> None:
    logits = rng.normal(size=(6, 4, 12)).astype(np.float32)
    contexts = rng.integers(0, 12, size=(6, 2)).tolist()
    config = DraftConfig("p_best", top_k=5, alpha=0.9)
    best = rescore_lattice(logits, contexts, lm, top_k=5, alpha=0.9, num_drafts=1).token_ids[:, 0]
    drafter = LatticeDrafter(lm, config, "best")
    assert drafter.propose(logits, contexts, [4] * 6) == best.tolist()
    argmax = LatticeDrafter(None, config, "argmax").propose(torch.tensor(logits), contexts, [4] * 6)
    assert argmax == logits.argmax(axis=-1).tolist()


@pytest.mark.parametrize("draft", ["chain", "best", "argmax"])
def test_a_short_lattice_is_searched_as_one(
    draft: str, lm: NGramLM, rng: np.random.Generator
) -> None:
    config = DraftConfig(top_k=4, alpha=2.0)
    drafter = LatticeDrafter(lm, config, draft)
    logits = rng.normal(size=(4, 4, 12)).astype(np.float32)
    contexts = rng.integers(0, 12, size=(4, 2)).tolist()
    together = drafter.propose(logits, contexts, [1, 2, 3, 9])
    alone = [
        drafter.propose(logits[i : i + 1, : i + 1], contexts[i : i + 1], [4])[0] for i in range(4)
    ]
    assert together == alone
    assert [len(chain) for chain in together] == [1, 2, 3, 4]


@pytest.mark.parametrize("draft", ["chain", "best", "argmax"])
def test_masked_slots_end_drafts(draft: str, lm: NGramLM) -> None:
    logits = np.zeros((2, 3, 12), np.float32)
    logits[0, 1:], logits[1] = -np.inf, -np.inf
    chains = LatticeDrafter(lm, DraftConfig(top_k=2), draft).propose(logits, [[1], [2]], [3, 3])
    assert [len(chain) for chain in chains] == [1, 0]


# Heads
def test_heads_share_the_output_embedding() -> None:
    torch.manual_seed(0)
    heads, embedding = BlockwiseHeads(8, 4), torch.nn.Linear(8, 12, bias=False)
    torch.nn.init.normal_(heads.outer_weight)
    hidden = torch.randn(5, 8)
    with torch.inference_mode():
        expected = embedding(heads(hidden))
        every = HeadLogits(heads, embedding, 8)(hidden, [0] * 5)
        two = HeadLogits(heads, embedding, 2)(hidden, [0] * 5)
        nothing = HeadLogits(heads, lambda _: None, 8)(hidden, [0] * 5)
    assert every is not None
    assert two is not None
    torch.testing.assert_close(every, expected)
    torch.testing.assert_close(two, expected[:, :2])
    assert nothing is None


def test_medusa_heads_have_logits_of_their_own() -> None:
    heads = MedusaHeads(8, 12, 3)
    torch.nn.init.normal_(heads.output_weight)
    hidden = torch.randn(2, 8)
    logits = HeadLogits(heads, lambda _: None, 2)(hidden, [0, 1])
    assert logits is not None
    torch.testing.assert_close(logits, heads(hidden)[:, :2])


# Options
def test_options_come_from_json() -> None:
    options = DrafterOptions.from_mapping({"directory": "d", "lm": ["a", "b"], "draft": "mixture"})
    assert (options.directory, options.lm, options.threads) == ("d", ["a", "b"], 0)
    assert DrafterOptions.from_mapping({}) == DrafterOptions()


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (None, TypeError, "options are None; expected an object"),
        ({"directry": "d"}, TypeError, "'directry'; did you mean 'directory'"),
        ({"directory": 3}, TypeError, "directory is 3; expected a string"),
        ({"directory": "d", "check": 1}, TypeError, "check is 1; expected true or false"),
        ({"directory": "d", "threads": True}, TypeError, "threads is True"),
        ({"lm": 3}, TypeError, "lm is 3; expected a file, or a list of files"),
        ({"sources": "text"}, TypeError, "sources is 'text'; expected a list of strings"),
        ({"sources": []}, ValueError, "sources has none; expected of heads, lm, text"),
        ({"sources": ["store"]}, ValueError, "sources has 'store'; expected of heads, lm, text"),
        ({"directory": "d", "threads": None}, TypeError, "threads is None; expected a whole"),
        ({"directory": "d", "log_seconds": None}, TypeError, "log_seconds is None; expected a"),
        ({"directory": "d", "threads": -1}, ValueError, "threads is -1"),
        (
            {"directory": "d", "draft": "tree"},
            ValueError,
            "expected one of mixture, chain, best, argmax",
        ),
        ({"directory": "d", "log_seconds": math.inf}, ValueError, "log_seconds inf"),
    ],
)
def test_wrong_options_are_named(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DrafterOptions.from_mapping(values)


def test_null_is_the_value_of_drafter_json() -> None:
    names = ("heads", "lm", "draft", "top_k", "alpha", "temperature", "sources")
    options = DrafterOptions.from_mapping({"directory": "d", **dict.fromkeys(names)})
    assert options == DrafterOptions("d")


# Files
@pytest.fixture
def folder(tmp_path: Path, lm: NGramLM) -> Path:
    BlockwiseHeads(8, 5, vocab_size=12).save_pretrained(tmp_path)
    lm.save(tmp_path / "four.lm")
    about = {"name": "3gram", "file": "/elsewhere/four.lm", "order": 3, "vocab_size": 12}
    DrafterFile(DraftConfig("chain", alpha=0.8, temperature=2.0), 12, 4, about).save(
        tmp_path / "drafter.json"
    )
    return tmp_path


def change(folder: Path, **values: Any) -> None:
    path = folder / "drafter.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_folder_is_a_drafter(folder: Path) -> None:
    parts = load_parts(DrafterOptions(str(folder), alpha=0.3))
    assert (parts.draft, parts.vocab_size, parts.heads.num_slots) == ("chain", 12, 4)
    assert (parts.config.alpha, parts.config.temperature) == (0.3, 2.0)
    assert [lm.order for lm in parts.lms] == [3]


@pytest.mark.parametrize(
    ("strategy", "draft"), [("bpd", "argmax"), ("p_best", "best"), ("tree", "chain")]
)
def test_the_strategy_names_the_draft(folder: Path, strategy: str, draft: str) -> None:
    change(folder, strategy=strategy)
    assert load_parts(DrafterOptions(str(folder))).draft == draft


def test_heads_alone_are_a_drafter(folder: Path) -> None:
    parts = load_parts(DrafterOptions(heads=str(folder)))
    assert (parts.draft, parts.lms, parts.vocab_size) == ("mixture", (), 12)


def test_a_drafter_that_does_not_pay_is_refused(folder: Path) -> None:
    change(folder, strategy="greedy")
    with pytest.raises(ValueError, match="serve without --speculative-config"):
        load_parts(DrafterOptions(str(folder)))
    assert load_parts(DrafterOptions(str(folder), draft="best")).draft == "best"


@pytest.mark.parametrize(
    ("draft", "name", "value", "used"),
    [
        ("best", "temperature", 2.0, "'chain'"), ("argmax", "temperature", 2.0, "'chain'"),
        ("mixture", "temperature", 2.0, "'chain'"), ("mixture", "alpha", 0.5, "'chain' or 'best'"),
        ("argmax", "alpha", 0.5, "'chain' or 'best'"),
        ("argmax", "top_k", 4, "'mixture' or 'chain' or 'best'"),
        ("argmax", "lm", "four.lm", "'mixture' or 'chain' or 'best'"),
        ("chain", "sources", ("text",), "'mixture'"),
    ],
)  # fmt: skip
def test_options_that_a_draft_form_does_not_use_are_refused(
    folder: Path, draft: str, name: str, value: Any, used: str
) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is for draft {used}, not '{draft}'"):
        load_parts(DrafterOptions(str(folder), draft=draft, **given))
    given[name] = None  # not given
    load_parts(DrafterOptions(str(folder), draft=draft, **given))


def test_argmax_reads_no_lm(folder: Path) -> None:
    (folder / "four.lm").unlink()
    assert load_parts(DrafterOptions(str(folder), draft="argmax")).lms == ()
    with pytest.raises(ValueError, match="needs an n-gram LM"):
        load_parts(DrafterOptions(str(folder)))


def test_parts_that_do_not_fit_are_refused(folder: Path) -> None:
    change(folder, vocab_size=13)
    with pytest.raises(ValueError, match=r"vocabularies differ: the LM 12, drafter.json 13"):
        load_parts(DrafterOptions(str(folder)))
    change(folder, num_slots=3, vocab_size=12)
    with pytest.raises(ValueError, match="is for 3 slots, the heads have 4"):
        load_parts(DrafterOptions(str(folder)))


def test_block_drafters_are_drafters(folder: Path, tmp_path_factory: Any) -> None:
    config = BlockDrafterConfig(
        hidden_size=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, intermediate_size=8,
        vocab_size=12, target_hidden_size=8, hidden_layers=(0,), block_size=5, mask_token_id=0,
        scorer=SelectorConfig(rank=2, top_k=3),
    )  # fmt: skip
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    BlockDrafter(config).save_pretrained(checkpoint)
    options = DrafterOptions(str(folder), heads=str(checkpoint))
    parts = load_parts(options)
    assert isinstance(parts.heads, BlockDrafter)
    assert (parts.heads.num_slots, parts.vocab_size, parts.draft) == (4, 12, "chain")
    assert len(parts.lms) == 1
