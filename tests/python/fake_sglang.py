"""SGLang without SGLang: a stand-in for its NGRAM worker, or its own sources, and a scheduler.

SGLANG_SOURCES names a folder with the Python sources of its wheel (scripts/test_sglang.sh); without
it `NGRAMWorker` below calls what the worker's does. Everything else is faked: the target is a model
of `transformers`, whose own `forward` gives the logits of each node's path.
"""

from __future__ import annotations

import importlib
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor

SPECULATIVE = "sglang.srt.speculative"
REAL = [f"{SPECULATIVE}.{name}" for name in ("spec_registry", "spec_info", "ngram_info")]
REAL.append(f"{SPECULATIVE}.ngram_worker")


class Mode(str):
    """A forward mode."""

    def is_decode(self) -> bool:
        return self == "DECODE"

    def is_target_verify(self) -> bool:
        return self == "TARGET_VERIFY"


class NGRAMWorker:
    """The stand-in: the calls of SGLang 0.5.23's worker, in their order."""

    def __init__(
        self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any  # noqa: ARG002
    ) -> None:  # fmt: skip
        self.target_worker, self.model_runner = target_worker, target_worker.model_runner
        self.draft_token_num, self.max_trie_depth = server_args.speculative_num_draft_tokens, 18
        self.enable_overlap = not server_args.disable_overlap_schedule
        self.ngram_corpus: Any = None
        self._previous: set[str] = set()

    def alloc_memory_pool(self) -> None:
        pass

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        if not batch.forward_mode.is_decode():
            return
        self.ngram_corpus.synchronize()
        size, names, tails, lengths = self.draft_token_num, [], [], []
        for row, req in enumerate(batch.reqs):
            new: list[int] = []
            if self.enable_overlap:
                kept = int(batch.spec_info.accept_lens[row])
                new = batch.spec_info.accept_tokens[row * size :][:kept].tolist()
            text = [*req.origin_input_ids_unpadded, *req.output_ids, *new]
            names.append(req.rid)
            tails.append(text[-self.max_trie_depth :])
            lengths.append(len(text))
        tokens, mask = self.ngram_corpus.batch_get(names, tails, lengths)
        assert (tokens.dtype, mask.dtype) == (np.int64, np.bool_)
        count = len(batch.reqs)
        links = [torch.empty(count * size, dtype=torch.int64) for _ in range(4)]
        tree_mask = torch.from_numpy(mask)
        reconstruct(tree_mask, batch.seq_lens, *links, count, size)
        batch.forward_mode, batch.input_ids = Mode("TARGET_VERIFY"), torch.from_numpy(tokens)
        batch.spec_info = SimpleNamespace(
            draft_token=batch.input_ids, custom_mask=tree_mask, positions=links[0],
            retrieve_index=links[1].view(count, size),
            retrieve_next_token=links[2].view(count, size),
            retrieve_next_sibling=links[3].view(count, size), draft_token_num=size,
        )  # fmt: skip

    def _update_ngram_corpus(self, batch: Any) -> None:  # noqa: ARG002
        raise AssertionError("replaced")

    def forward_batch_generation(self, batch: Any) -> Any:
        self._prepare_for_speculative_decoding(batch)
        result = self.target_worker.forward_batch_generation(batch)
        lens = torch.ones(len(batch.reqs), dtype=torch.int32)
        if batch.forward_mode.is_target_verify():
            predict, lens, index = verify_greedy(batch.spec_info, batch, result.logits_output)
            tokens = predict[index].flatten()
            self._update_ngram_corpus(batch)
            names = {req.rid for req in batch.reqs}
            self.ngram_corpus.erase_match_state(list(self._previous - names))
            self._previous = names
        else:
            padded = torch.zeros(len(batch.reqs), self.draft_token_num, dtype=torch.int32)
            padded[:, 0] = result.next_token_ids
            tokens = padded.flatten()
        relay = SimpleNamespace(accept_tokens=tokens, accept_lens=lens)
        return SimpleNamespace(next_draft_input=relay, new_seq_lens=batch.seq_lens + lens)


def reconstruct(
    tree_mask: Tensor, seq_lens: Tensor, positions: Tensor, index: Tensor, next_token: Tensor,
    next_sibling: Tensor, count: int, size: int,
) -> None:  # fmt: skip
    """What `reconstruct_indices_from_tree_mask` of SGLang says that it computes."""
    ancestors = tree_mask.view(count, size, size).numpy() & np.tri(size, k=-1, dtype=bool)
    parents = [[max(np.flatnonzero(row), default=-1) for row in one] for one in ancestors]
    for b in range(count):
        for i in range(size):
            children = [k for k in range(size) if ancestors[b, k, i]]
            later = [k for k in range(i + 1, size) if parents[b][k] == parents[b][i] >= 0]
            positions.view(count, size)[b, i] = int(ancestors[b, i].sum()) + int(seq_lens[b])
            index.view(count, size)[b, i] = b * size + i
            next_token.view(count, size)[b, i] = min(children, default=-1)
            next_sibling.view(count, size)[b, i] = min(later, default=-1)


def verify_greedy(verify: Any, batch: Any, logits: Any, *_: Any, **__: Any) -> Any:
    """`verify_tree_greedy`: from the root the child that is the target's token, as far as any."""
    size, count = verify.draft_token_num, len(batch.reqs)
    best = logits.next_token_logits.argmax(dim=-1)
    index = torch.full((count, size), -1, dtype=torch.int32)
    lens = torch.empty(count, dtype=torch.int32)
    for b in range(count):
        node, accepted = 0, []
        while node >= 0:
            accepted.append(int(verify.retrieve_index[b, node]))
            token, node = int(best[accepted[-1]]), int(verify.retrieve_next_token[b, node])
            while node >= 0 and int(verify.draft_token[b * size + node]) != token:
                node = int(verify.retrieve_next_sibling[b, node])
        lens[b], index[b, : len(accepted)] = len(accepted), torch.tensor(accepted)
    return best.int(), lens, index


class Target:
    """The target's worker: logits of whole texts, by the model's own `forward`.

    Attributes:
        calls: of the target.
    """

    def __init__(self, model: Any, size: int) -> None:
        self.model, self.size, self.calls = model, size, 0
        self.model_runner = MagicMock(
            model_config=SimpleNamespace(vocab_size=model.config.vocab_size),
            max_running_requests=8, watermark_state=None,
        )  # fmt: skip

    def get_memory_pool(self) -> Any:
        return MagicMock(), MagicMock()

    def forward_batch_generation(self, batch: Any, **_: Any) -> Any:
        self.calls += 1
        if not batch.forward_mode.is_target_verify():
            tokens = [int(self._logits(text).argmax()) for text in batch.known]
            output = SimpleNamespace(next_token_logits=None)
            return SimpleNamespace(
                next_token_ids=torch.tensor(tokens), logits_output=output, can_run_cuda_graph=False
            )
        verify, rows, start = batch.spec_info, [], 0
        for b, text in enumerate(batch.known):
            whole = verify.custom_mask.numel() > len(batch.known) * self.size**2
            width = len(text) * whole + self.size
            mask = verify.custom_mask[start : start + self.size * width].view(self.size, width)
            start += self.size * width
            assert bool(mask[:, : len(text) * whole].all())
            tokens = batch.input_ids[b * self.size :][: self.size]
            for node in range(self.size):
                path = tokens[mask[node, len(text) * whole :].bool()].tolist()
                assert int(verify.positions[b * self.size + node]) == len(text) + len(path) - 1
                rows.append(self._logits([*text, *path]))
        output = SimpleNamespace(next_token_logits=torch.stack(rows))
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=False)

    def _logits(self, text: Sequence[int]) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.model(torch.tensor([list(text)])).logits[0, -1]
        return logits


def decode(worker: Any, prompts: dict[str, list[int]], count: int) -> dict[str, list[int]]:
    """What SGLang's scheduler does: prefill, then steps; results a step late with overlap.

    A request leaves the batch when it has `count` tokens, the others continue.
    """
    reqs = [
        SimpleNamespace(rid=name, origin_input_ids_unpadded=array("q", prompt),
                        output_ids=array("q"), lora_id=None, extra_key=None)
        for name, prompt in prompts.items()
    ]  # fmt: skip
    batch = SimpleNamespace(
        reqs=reqs, forward_mode=Mode("EXTEND"), known=[list(one) for one in prompts.values()],
        seq_lens=torch.tensor([len(one) for one in prompts.values()]), spec_info=None,
        has_grammar=False, return_logprob=False, req_pool_indices=None, device="cpu",
        req_to_token_pool=MagicMock(), grammar_needs_sync=lambda: False,
        sampling_info=SimpleNamespace(has_watermark_candidates=False),
    )  # fmt: skip
    texts: dict[str, list[int]] = {name: [] for name in prompts}
    late: list[tuple[Any, list[int]]] = []
    while batch.reqs:
        batch.seq_lens_cpu = batch.seq_lens
        is_prefill = batch.forward_mode == "EXTEND"
        result = worker.forward_batch_generation(batch)
        relay = result.next_draft_input
        kept = relay.accept_tokens.view(len(batch.reqs), -1)
        new = [kept[b, : int(relay.accept_lens[b])].tolist() for b in range(len(batch.reqs))]
        for req, tokens in late:
            req.output_ids.extend(tokens)
        late = list(zip(batch.reqs, new, strict=True))
        if not worker.enable_overlap:
            for req, tokens in late:
                req.output_ids.extend(tokens)
            late = []
        for b, (req, tokens) in enumerate(zip(batch.reqs, new, strict=True)):
            if not is_prefill:  # the keys and values of the accepted path are in the cache
                batch.known[b] += [texts[req.rid][-1], *tokens[:-1]]
            texts[req.rid] += tokens
        left = [b for b, req in enumerate(batch.reqs) if len(texts[req.rid]) < count]
        batch.reqs = [batch.reqs[b] for b in left]
        batch.known = [batch.known[b] for b in left]
        batch.seq_lens = torch.tensor([len(text) for text in batch.known], dtype=torch.int64)
        batch.spec_info = SimpleNamespace(
            accept_tokens=kept[left].flatten(), accept_lens=relay.accept_lens[left]
        )
        batch.forward_mode = Mode("DECODE")
    return {name: tokens[:count] for name, tokens in texts.items()}


class _Modules(MetaPathFinder, Loader):
    """Modules of SGLang: real ones from `folder`, the others with what `given` has, else mocks."""

    def __init__(self, folder: Path | None, given: dict[str, dict[str, Any]]) -> None:
        self._folder, self._given = folder, given

    def find_spec(self, name: str, *_: Any) -> Any:
        if name.split(".")[0] != "sglang":
            return None
        if self._folder is not None and name in REAL:
            file = self._folder.joinpath(*name.split(".")).with_suffix(".py")
            return spec_from_file_location(name, file)
        return spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        module = ModuleType(spec.name)
        module.__path__ = []
        vars(module).update(self._given.get(spec.name, {}))
        module.__getattr__ = lambda name: _mock(name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _mock(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock(name=name)


class _Algorithms:
    """`SpeculativeAlgorithm` of the stand-in."""

    known: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def from_string(cls, name: str) -> Any:
        if name not in cls.known:
            raise ValueError(name)
        return cls.known[name]

    @classmethod
    def register(cls, name: str, *, supports_overlap: bool, spec_class: Any) -> Any:
        def decorate(factory: Any) -> Any:
            cls.known[name] = spec_class(name, factory, supports_overlap=supports_overlap)
            return factory

        return decorate


class _Algorithm:
    def __init__(self, name: str, factory: Any, **_: Any) -> None:
        self.name, self.create_worker = name, factory


@contextmanager
def sglang(folder: str | None, *, overlap: bool, nodes: int, on_cpu: bool = True) -> Iterator[Any]:
    """`lattice_bpd_sglang.worker` in an SGLang of these settings."""
    spec = MagicMock(speculative_num_draft_tokens=nodes)
    spec.speculative_ngram_external_corpus_path = None
    settings = {
        "get_spec": lambda: spec, "get_device": lambda: SimpleNamespace(device="cpu"),
        "get_schedule": lambda: SimpleNamespace(disable_overlap_schedule=not overlap, page_size=1),
    }  # fmt: skip
    given: dict[str, dict[str, Any]] = {
        "sglang.version": {"__version__": "0.5.23"},
        "sglang.srt.runtime_context": settings,
        "sglang.srt.utils": {"is_cpu": lambda: on_cpu},
        "sglang.srt.managers.scheduler": {"GenerationBatchResult": SimpleNamespace},
        "sglang.srt.model_executor.forward_batch_info": {
            "ForwardMode": SimpleNamespace(
                TARGET_VERIFY=Mode("TARGET_VERIFY"), DECODE=Mode("DECODE")
            )
        },
        "sglang.kernels.ops.speculative.reconstruct_tree": {
            "reconstruct_indices_from_tree_mask_func": reconstruct
        },
        f"{SPECULATIVE}.eagle_utils": {"eagle_sample": verify_greedy},
        f"{SPECULATIVE}.base_spec_worker": {
            "BaseSpecWorker": type("BaseSpecWorker", (), {
                "target_worker": property(lambda self: self._target_worker)}),
        },
    }  # fmt: skip
    if folder is None:
        _Algorithms.known = {}
        given |= {
            f"{SPECULATIVE}.ngram_worker": {"NGRAMWorker": NGRAMWorker},
            f"{SPECULATIVE}.spec_info": {"SpeculativeAlgorithm": _Algorithms},
            f"{SPECULATIVE}.spec_registry": {"CustomSpecAlgo": _Algorithm},
        }
    finder = _Modules(None if folder is None else Path(folder), given)
    kept = dict(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module("lattice_bpd_sglang.worker")
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - set(kept):
            if name.split(".")[0] == "sglang" or name == "lattice_bpd_sglang.worker":
                del sys.modules[name]
