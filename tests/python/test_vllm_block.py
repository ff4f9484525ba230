"""Block drafters in the vLLM plug-in: cache positions of an engine, and hidden states of layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import DraftConfig
from lattice_bpd.draft.rescore import rescore_lattice
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import BlockDrafterConfig, LiLiCorrConfig, SelectorConfig
from lattice_bpd_drafters.heads import read_slots
from lattice_bpd_vllm.block_lattices import BlockLattices, CacheLayout
from lattice_bpd_vllm.drafting import LatticeDrafter
from lattice_bpd_vllm.runner_v1 import (
    RunnerStep,
    aux_layers_of,
    read_features,
    read_layout,
    request_aux_states,
)
from lattice_bpd_vllm.step_drafter import UnsupportedError
from lattice_bpd_vllm.support import check_block_drafter
from lattice_bpd_vllm.targets import TargetInfo, TargetView

VOCAB, WIDTH, LAYERS, BLOCK = 24, 16, 4, 4  # of the target; positions of a block of its cache
SCORERS: dict[str, Any] = {
    "none": None,
    "selector": SelectorConfig(rank=4, top_k=5),
    "lilicorr": LiLiCorrConfig(
        hidden_size=8, factor_size=6, num_layers=1, num_heads=2, mlp_ratio=2.0, top_k=4,
        logit_scale=8.0, vector_eps=1e-4,
    ),
}  # fmt: skip


class Target(torch.nn.Module):
    """What vLLM's models have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(VOCAB, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCAB, bias=False)
        self.logits_processor = SimpleNamespace(scale=1.0, soft_cap=None)

    def embed_input_ids(self, ids: torch.Tensor) -> torch.Tensor:
        assert ids.dim() == 1
        return self.embedding(ids)

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        assert states.dim() == 2
        return self.head(states)


def view_of(target: Target, width: int = WIDTH) -> Any:
    return TargetView(
        TargetInfo(
            target.compute_logits, width, VOCAB, torch.float32, torch.device("cpu"), LAYERS,
            target.embed_input_ids,
        )
    )  # fmt: skip


def make_drafter(scorer: Any) -> BlockDrafter:
    config = BlockDrafterConfig(
        hidden_size=WIDTH, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8,
        intermediate_size=20, vocab_size=VOCAB, target_hidden_size=WIDTH, hidden_layers=(2, 0),
        block_size=5, mask_token_id=0, scorer=scorer,
    )  # fmt: skip
    torch.manual_seed(0)
    drafter = BlockDrafter(config).eval()
    for weight in drafter.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    drafter.attach(view_of(Target()))
    return drafter


class Engine:
    """Cache positions of requests as vLLM gives them: blocks in any order, reused and lost."""

    def __init__(self, rng: np.random.Generator, num_blocks: int = 100) -> None:
        self.rng, self.num_blocks = rng, num_blocks
        self.free = rng.permutation(np.arange(1, num_blocks)).tolist()  # 0 is vLLM's null block
        self.blocks: dict[int, list[int]] = {}
        self.read: dict[int, int] = {}

    def layout(self, batch: list[tuple[int, int]]) -> CacheLayout:
        """Of a step in which each request of a batch reads some tokens after those it has."""
        slots, starts, lengths = [], [0], []
        for request, count in batch:
            blocks = self.blocks.setdefault(request, [])
            first = self.read.get(request, 0)
            while len(blocks) * BLOCK < first + count:
                blocks.append(self.free.pop())
            positions = range(first, first + count)
            slots += [blocks[one // BLOCK] * BLOCK + one % BLOCK for one in positions]
            starts.append(starts[-1] + count)
            lengths.append(first + count)
        table = torch.zeros(len(batch), 24, dtype=torch.int32)
        for row, (request, _) in enumerate(batch):
            table[row, : len(self.blocks[request])] = torch.tensor(self.blocks[request])
        return CacheLayout(
            torch.tensor(slots), torch.tensor(starts), torch.tensor(lengths), table, BLOCK,
            self.num_blocks * BLOCK,
        )  # fmt: skip

    def preempt(self, request: int) -> None:
        self.free = self.rng.permutation(self.free + self.blocks.pop(request)).tolist()
        self.read[request] = 0


@torch.no_grad()
def test_memory_that_the_engine_left_no_room_for(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    lattices, engine = (
        BlockLattices(make_drafter(SCORERS[next(iter(SCORERS))]), 3, VOCAB),
        Engine(rng),
    )
    monkeypatch.setattr(torch.Tensor, "new_zeros", lacks)
    with pytest.raises(MemoryError, match=r"9 GiB.*leave some free by gpu_memory_utilization"):
        lattices.store(torch.randn(2, 2 * WIDTH), engine.layout([(0, 2)]))


@pytest.mark.parametrize("scorer", SCORERS)
@torch.no_grad()
def test_lattices_are_those_of_the_drafters_own_cache(
    scorer: str, rng: np.random.Generator
) -> None:
    """Chunks of prompts, rejected tokens, preemption, prefixes of others, batches in any order."""
    drafter = make_drafter(SCORERS[scorer])
    lattices, engine = BlockLattices(drafter, 3, VOCAB), Engine(rng)
    assert lattices.num_slots == 3
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(3, 90, 2 * WIDTH, generator=generator)  # features of each text
    right[2, :8] = right[0, :8]  # texts 0 and 2 have two blocks in common
    for step in range(14):
        requests = rng.permutation([0, 1, 2] if step > 4 else [0, 1]).tolist()
        if step == 5:  # a prefix that another request has read
            engine.blocks[2], engine.read[2] = engine.blocks[0][:2], 8
        if step == 8:
            engine.preempt(1)
        batch, features, kept = [], [], {}
        for request in requests:
            first = engine.read.get(request, 0)
            count = int(rng.integers(1, 6)) if step else 8
            kept[request] = count if first < 6 else int(rng.integers(1, count + 1))
            rows = right[request, first : first + count].clone()
            rows[kept[request] :] += 1.0  # of rejected tokens
            batch.append((request, count))
            features.append(rows)
        layout = engine.layout(batch)
        lattices.store(torch.cat(features), layout)
        for request in requests:
            engine.read[request] = engine.read.get(request, 0) + kept[request]
        chosen = [row for row in range(len(batch)) if rng.random() < 0.8] or [0]
        lengths = [engine.read[batch[row][0]] for row in chosen]
        anchors = rng.integers(0, VOCAB, size=len(chosen)).tolist()
        found = lattices(chosen, lengths, anchors)
        for row, (one, length) in enumerate(zip(chosen, lengths, strict=True)):
            cache = drafter.new_cache(1)
            drafter.append(cache, right[batch[one][0], :length].unsqueeze(0), [length])
            expected = read_slots(drafter, cache, torch.tensor([anchors[row]]), VOCAB)
            check_equal(found, row, expected)


def check_equal(
    found: torch.Tensor | LatticeInput, row: int, expected: torch.Tensor | LatticeInput
) -> None:
    close = {"rtol": 1e-4, "atol": 1e-5}
    if isinstance(expected, LatticeInput):
        assert isinstance(found, LatticeInput)
        assert found.token_ids[row].tolist() == expected.token_ids[0, :3].tolist()
        torch.testing.assert_close(found.start[row], expected.start[0], **close)
        torch.testing.assert_close(found.transitions[row], expected.transitions[0, :2], **close)
        found, expected = found.scores, expected.scores
    assert not isinstance(found, LatticeInput)
    torch.testing.assert_close(found[row], expected[0, :3], **close)


@pytest.mark.parametrize(("draft", "objective"), [("chain", "accept_length"), ("best", "score")])
@torch.no_grad()
def test_drafts_follow_the_transition_scores(draft: str, objective: Any) -> None:
    drafter, contexts, lengths = make_drafter(SCORERS["selector"]), [[4], [0], [7]], [4, 3, 1]
    assert drafter.candidate_selector is not None
    drafter.candidate_selector.predecessor_codebook.mul_(20)  # so that the order changes
    cache = drafter.new_cache(3)
    drafter.append(cache, torch.randn(3, 6, 2 * WIDTH), [6, 2, 5])
    lattice = read_slots(drafter, cache, torch.tensor([4, 0, 7]), VOCAB)
    assert isinstance(lattice, LatticeInput)
    config = DraftConfig("chain", top_k=5)
    chains = LatticeDrafter(None, config, draft).propose(lattice, contexts, lengths)
    expected = rescore_lattice(
        lattice.end_after(lengths), contexts, None, num_drafts=1, objective=objective
    ).token_ids[:, 0]
    assert chains == [row[:end].tolist() for row, end in zip(expected, lengths, strict=True)]
    best = LatticeDrafter(None, config, "argmax").propose(lattice, contexts, lengths)
    assert best == [
        row[:end].tolist() for row, end in zip(lattice.token_ids[..., 0], lengths, strict=True)
    ]
    assert best != chains


def test_nothing_stored_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no hidden states were stored"):
        BlockLattices(make_drafter(None), 3, VOCAB)([0], [1], [2])


def test_what_block_drafters_cannot_do_is_refused() -> None:
    def config_of(stages: int = 1, connector: Any = None, **more: int) -> Any:
        parallel = SimpleNamespace(pipeline_parallel_size=stages, **more)
        return SimpleNamespace(parallel_config=parallel, kv_transfer_config=connector)

    target: Any = Target()
    with pytest.raises(ValueError, match="Target does not return hidden states of its layers"):
        check_block_drafter(config_of(), target)
    target.set_aux_hidden_state_layers = print
    check_block_drafter(config_of(), target)
    with pytest.raises(ValueError, match="pipeline_parallel_size is 2"):
        check_block_drafter(config_of(stages=2), target)
    with pytest.raises(ValueError, match="a KV connector is set"):
        check_block_drafter(config_of(connector=object()), target)
    with pytest.raises(ValueError, match="decode_context_parallel_size is 4"):
        check_block_drafter(config_of(decode_context_parallel_size=4), target)
    target.logits_processor.soft_cap = 30.0
    with pytest.raises(ValueError, match=r"scales its logits by 1\.0 and caps them at 30\.0"):
        check_block_drafter(config_of(), target)


# Hidden states of layers
def step_of(spec: str = "FullAttentionSpec") -> RunnerStep:
    """A step of 5 tokens of two requests; arrays are padded to 8."""
    kind = type(spec, (), {"block_size": 8})
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(
            req_ids=["a", "b"], block_table=[SimpleNamespace(block_size=BLOCK)]
        ),
        kv_cache_config=SimpleNamespace(
            num_blocks=6, kv_cache_groups=[SimpleNamespace(kv_cache_spec=kind())]
        ),
        model_config=SimpleNamespace(get_total_num_hidden_layers=lambda: 5),
    )
    attention = SimpleNamespace(
        slot_mapping=torch.tensor([8, 9, 20, 21, 22, -1, -1, -1]),
        query_start_loc=torch.tensor([0, 2, 5, 5], dtype=torch.int32),
        seq_lens=torch.tensor([2, 7, 0], dtype=torch.int32),
        block_table_tensor=torch.tensor([[2, 0], [4, 5]], dtype=torch.int32),
    )
    aux = [torch.full((8, 2), float(number)) for number in (0, 3)]
    return RunnerStep(
        runner, SimpleNamespace(total_num_scheduled_tokens=5), None, None, None,
        torch.full((8, 2), 9.0), aux, attention,
    )  # fmt: skip


def test_the_layout_is_that_of_vllm() -> None:
    layout = read_layout(step_of())
    assert layout.slots.tolist() == [8, 9, 20, 21, 22]
    assert layout.positions.tolist() == [0, 1, 4, 5, 6]
    assert layout.num_slots == 48
    assert layout.slots_of(torch.tensor([1, 0]), 6).tolist() == [
        [16, 17, 18, 19, 20, 21], [8, 9, 10, 11, 0, 1]
    ]  # fmt: skip
    with pytest.raises(
        UnsupportedError, match="is a SlidingWindowSpec; expected FullAttentionSpec"
    ):
        read_layout(step_of("SlidingWindowSpec"))


def test_features_are_in_the_drafters_order() -> None:
    assert aux_layers_of((2, -1, 4), 5) == (0, 3)  # the last layer is the last hidden state
    features = read_features(step_of(), (2, -1, 4))
    assert features.shape == (5, 6)
    assert features[4].tolist() == [3.0, 3.0, 0.0, 0.0, 9.0, 9.0]


def test_runners_are_told_the_layers() -> None:
    calls = []

    class Runner:
        use_aux_hidden_state_outputs = False
        model = SimpleNamespace(set_aux_hidden_state_layers=calls.append)
        drafter = SimpleNamespace(aux_layers=(1, 3))

        def _setup_eagle3_aux_hidden_state_outputs(self) -> None:
            calls.append(self.use_aux_hidden_state_outputs)

    request_aux_states(Runner, "0.32.0")
    request_aux_states(Runner, "0.32.0")
    Runner()._setup_eagle3_aux_hidden_state_outputs()
    assert calls == [True, (1, 3)]
    other = Runner()
    other.drafter = SimpleNamespace()
    other._setup_eagle3_aux_hidden_state_outputs()
    assert calls == [True, (1, 3), False]
    with pytest.raises(ImportError, match=r"not supported with vLLM 0\.40\.0"):
        request_aux_states(type("Other", (), {}), "0.40.0")
