"""The parts of the vLLM plug-in that need no engine: chains, heads, options, files."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import DraftConfig, NGramLM, rescore_lattice
from lattice_bpd.decode.drafter_file import DrafterFile
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd.models import linear as linear_module
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import BlockDrafterConfig, SelectorConfig
from lattice_bpd_drafters.medusa_heads import MedusaHeads
from lattice_bpd_vllm.cpu_layers import use_core_layers
from lattice_bpd_vllm.drafting import LatticeDrafter
from lattice_bpd_vllm.files import DrafterParts, load_parts
from lattice_bpd_vllm.head_logits import HeadLogits
from lattice_bpd_vllm.options import UNUSED, DrafterOptions


# Chains
@pytest.fixture(scope="module")
def lm() -> NGramLM:
    text = np.random.default_rng(0).integers(0, 12, size=4000)
    return NGramLM.train([text], 3, vocab_size=12, smoothing="witten_bell")


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
def test_heads_have_the_logits_of_the_library() -> None:
    torch.manual_seed(0)
    heads, own, embedding = BlockwiseHeads(8, 4), MedusaHeads(8, 12, 3), torch.nn.Linear(8, 12)
    torch.nn.init.normal_(heads.outer_weight)
    torch.nn.init.normal_(own.output_weight)
    hidden = torch.randn(5, 8)
    with torch.inference_mode():
        for source, expected in ((heads, embedding(heads(hidden))), (own, own(hidden))):
            found = HeadLogits(source, embedding, 2)(hidden, [0] * 5)
            torch.testing.assert_close(found, expected[:, :2])
        assert HeadLogits(heads, lambda _: None, 8)(hidden, [0] * 5) is None


# Options
@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (None, TypeError, "additional_config has none; expected an object"),
        ({"directry": "d"}, TypeError, "'directry'; did you mean 'directory'"),
        ({"directory": 3}, TypeError, "directory is 3; expected a string"),
        ({"check": 1}, TypeError, "check is 1; expected true or false"),
        ({"threads": True}, TypeError, "threads is True"),
        ({"threads": -1}, ValueError, "threads is -1; expected 0 or more"),
        ({"log_seconds": -0.5}, ValueError, "log_seconds is -0.5; expected 0 or more"),
        ({"lm": 3}, TypeError, "lm is 3; expected a file, or a list of files"),
        ({"sources": "text"}, TypeError, "sources is 'text'; expected a list of strings"),
        ({"sources": []}, ValueError, "sources has none; expected of heads, lm, text, target"),
        ({"sources": ["store"]}, ValueError, "sources has 'store'; expected of heads, lm, text"),
        ({"log_seconds": None}, TypeError, "log_seconds is None; expected a"),
        ({"log_seconds": math.inf}, ValueError, "log_seconds is inf"),
        ({"draft": "tree"}, ValueError, "expected one of mixture, chain, best, argmax"),
        ({"store": "", "store_tokens": 10}, ValueError, "store_tokens is 10; expected 1000"),
    ],
)
def test_wrong_options_are_named(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DrafterOptions.from_mapping(values)


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

    alone = load_parts(DrafterOptions(heads=str(folder)))
    assert (alone.draft, alone.lms, alone.vocab_size) == ("mixture", (), 12)
    for strategy, draft in (("bpd", "argmax"), ("p_best", "best"), ("tree", "chain")):
        change(folder, strategy=strategy)
        assert load_parts(DrafterOptions(str(folder))).draft == draft


def test_sources_are_optional(folder: Path) -> None:
    nothing = DrafterParts(None, (), DraftConfig("mixture"), "mixture", None)
    assert load_parts(DrafterOptions()) == nothing
    lm = str(folder / "four.lm")
    for given, orders in ((lm, [3]), ([lm, lm], [3, 3])):
        parts = load_parts(DrafterOptions(lm=given))
        assert ([one.order for one in parts.lms], parts.heads, parts.vocab_size) == (
            orders, None, 12,
        )  # fmt: skip


def test_a_drafter_that_does_not_pay_is_refused(folder: Path) -> None:
    change(folder, strategy="greedy")
    with pytest.raises(ValueError, match="serve without --speculative-config"):
        load_parts(DrafterOptions(str(folder)))
    assert load_parts(DrafterOptions(str(folder), draft="best")).draft == "best"


def test_the_models_own_predictions_are_a_source_by_name() -> None:
    parts = load_parts(DrafterOptions(sources=["text", "target"]))
    assert parts.config.sources == ("text", "target")


VALUES: dict[str, Any] = {
    "heads": ".", "lm": "four.lm", "sources": ["heads", "lm"], "store": "", "store_tokens": 2000,
    "top_k": 3, "alpha": 0.3, "temperature": 2.0, "threads": 1, "log_seconds": 1.0, "check": True,
}  # fmt: skip
USED = {
    "mixture": {"heads", "lm", "sources", "store", "store_tokens", "top_k"},
    "chain": {"heads", "lm", "top_k", "alpha", "temperature"},
    "best": {"heads", "lm", "top_k", "alpha"},
    "argmax": {"heads"},
}


@pytest.mark.parametrize("draft", USED)
@pytest.mark.parametrize("name", VALUES)
def test_each_option_is_used_or_refused(
    draft: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of `DrafterOptions` with each draft form."""
    monkeypatch.chdir(folder)
    assert {*VALUES, "directory", "draft"} == {one.name for one in fields(DrafterOptions)}
    given = {name: VALUES[name], **({"store": ""} if name == "store_tokens" else {})}
    is_used = name in USED[draft] | {"threads", "log_seconds", "check"}
    expected = pytest.raises(ValueError, match="is given, which is for draft '")
    with nullcontext() if is_used else expected:
        load_parts(DrafterOptions(".", draft=draft, **given))
    if name in UNUSED[draft]:
        load_parts(DrafterOptions(".", draft=draft, **{name: None}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lm": "four.lm", "sources": ["text"]}, "lm is given, and sources has no 'lm'"),
        ({"heads": ".", "sources": ["lm", "text"]}, "heads is given, and sources has no 'heads'"),
        ({"top_k": 3}, "top_k is given, and there are no heads"),
        ({"store_tokens": 5000}, "store_tokens is given, without the option store"),
        ({"directory": "/nowhere"}, "directory /nowhere is not there"),
        ({"heads": "/nowhere"}, "heads /nowhere is not there"),
        ({"lm": "nowhere.lm"}, "lattice_bpd: lm nowhere.lm is not there"),
        ({"directory": "/"}, "neither draft heads nor drafter.json"),
        ({"draft": "chain"}, "draft 'chain' needs heads"),
        ({"sources": ["heads"]}, "sources has heads, and neither directory nor"),
        ({"sources": ["lm", "text"]}, "sources has 'lm', and there is none"),
    ],
)
def test_a_source_that_is_not_there_is_named(
    given: dict[str, Any], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_parts(DrafterOptions(**given))


def test_argmax_reads_no_lm(folder: Path) -> None:
    (folder / "four.lm").unlink()
    assert load_parts(DrafterOptions(str(folder), draft="argmax")).lms == ()
    with pytest.raises(ValueError, match="needs an n-gram LM"):
        load_parts(DrafterOptions(str(folder)))


def test_parts_that_do_not_fit_are_refused(folder: Path) -> None:
    change(folder, vocab_size=13)
    with pytest.raises(ValueError, match=r"vocabularies differ: LM four\.lm 12, drafter.json 13"):
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


# Linear layers of a target on the CPU
class EngineParameter(torch.nn.Parameter):
    """vLLM's are of a class of their own."""


class EngineLayer(torch.nn.Module):
    """A linear layer as vLLM's CPU build calls it."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, *, has_bias: bool) -> None:
        super().__init__()
        self.weight = EngineParameter(torch.randn(rows, columns).to(dtype), requires_grad=False)
        bias = EngineParameter(torch.randn(rows).to(dtype), requires_grad=False)
        self.bias = bias if has_bias else None
        self.cpu_linear: Any = torch.nn.functional.linear

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.cpu_linear(states, self.weight, self.bias)
        return result


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
@torch.inference_mode()
def test_layers_of_the_engine_by_the_core(
    is_compiled: bool, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(linear_module.MOST_STATES, torch.bfloat16, 1 << 20)
    calls, apply = [], linear_module._core.apply_linear
    monkeypatch.setattr(
        linear_module._core, "apply_linear", lambda *args: (calls.append(args), apply(*args))[1]
    )
    torch.manual_seed(0)
    layer = EngineLayer(24, 32, torch.bfloat16, has_bias=has_bias)
    states = torch.randn(5, 32).bfloat16()
    wanted = layer(states).double()
    assert use_core_layers(layer) == 1
    graphs = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    torch.compiler.reset()
    run = torch.compile(layer, backend=note, fullgraph=True) if is_compiled else layer
    torch.testing.assert_close(run(states).double(), wanted, atol=0.1, rtol=2.0**-7)
    assert len(calls) == 1
    assert ["lattice_bpd.linear" in code for code in graphs] == [True] * is_compiled
    layer.weight.data.mul_(2.0)  # as weights that are loaded again
    doubled = 2.0 * wanted if layer.bias is None else 2.0 * wanted - layer.bias.double()
    torch.testing.assert_close(run(states).double(), doubled, atol=0.2, rtol=2.0**-6)


def test_other_layers_of_the_engine_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linear_module.MOST_STATES, torch.bfloat16, 1 << 20)
    monkeypatch.setitem(linear_module.MOST_STATES, torch.float16, 16)
    layers = [
        EngineLayer(24, 32, torch.float32, has_bias=False),  # oneDNN's are as fast
        EngineLayer(24, 32, torch.float16, has_bias=False),  # torch's are, with many tokens
        EngineLayer(24, 40, torch.bfloat16, has_bias=False),  # not a multiple of 16
        EngineLayer(0, 32, torch.bfloat16, has_bias=False),  # vLLM removed what it packed
        torch.nn.Linear(32, 24, dtype=torch.bfloat16),  # not called by `cpu_linear`
    ]
    assert use_core_layers(torch.nn.ModuleList(layers)) == 0
    assert all(getattr(one, "cpu_linear", torch.nn.functional.linear) is torch.nn.functional.linear
               for one in layers)  # fmt: skip
