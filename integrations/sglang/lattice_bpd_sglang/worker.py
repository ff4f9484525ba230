"""The worker of SGLang's NGRAM algorithm with trees of a mixture in place of its trie."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from sglang.srt.speculative.ngram_worker import NGRAMWorker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo
from sglang.version import __version__ as sglang_version

from lattice_bpd_sglang.trees import DraftTrees, Request, read_options

NAME = "LATTICE_BPD"
TESTED = ("0.5.23",)

_NUM_NODES = 12  # of NGRAM too
_MAX_RUNNING = 48  # of NGRAM too
_METHODS = {  # of NGRAMWorker: what is replaced or relied upon, with its parameters
    "__init__": ["self", "server_args", "gpu_id", "nccl_port", "target_worker"],
    "_prepare_for_speculative_decoding": ["self", "batch"],
    "_update_ngram_corpus": ["self", "batch"],
}
_LOGGER = logging.getLogger(__name__)


class LatticeAlgorithm(CustomSpecAlgo):  # type: ignore[misc]  # a class of SGLang
    """NGRAM to the rest of SGLang: no draft model, trees within the verification's mask."""

    def is_ngram(self) -> bool:
        """True: the same inputs, relay and CUDA graphs as NGRAM."""
        return True

    def has_draft_kv(self) -> bool:
        """False: drafts have no KV cache."""
        return False

    def handle_server_args(self, server_args: Any) -> None:
        """As SGLang does for NGRAM, whose function declares to a record that a plug-in has not.

        Raises:
            ValueError: a configuration in which trees are not verified correctly.
        """
        nodes = server_args.speculative_num_draft_tokens or _NUM_NODES
        breadth = server_args.speculative_ngram_max_bfs_breadth
        steps = server_args.speculative_num_steps or max(nodes // breadth, 1)
        server_args.speculative_num_draft_tokens = nodes
        server_args.speculative_num_steps, server_args.speculative_eagle_topk = steps, breadth
        server_args.max_running_requests = server_args.max_running_requests or _MAX_RUNNING
        server_args.enable_mixed_chunk = False
        if server_args.device == "cpu":
            server_args.disable_overlap_schedule = True
        if (server_args.page_size or 1) > 1 and server_args.attention_backend != "flashinfer":
            raise ValueError(
                f"{NAME}: page size {server_args.page_size} with attention backend "
                f"{server_args.attention_backend}, in which SGLang verifies trees incorrectly; "
                "expected --page-size 1, or --attention-backend flashinfer"
            )
        if server_args.enable_dp_attention or server_args.speculative_ngram_external_corpus_path:
            raise ValueError(
                f"{NAME}: neither DP attention nor --speculative-ngram-external-corpus-path is "
                "supported; an n-gram LM of a corpus is the option lm"
            )


class LatticeWorker(NGRAMWorker):  # type: ignore[misc]  # a class of SGLang
    """NGRAMWorker whose corpus is a `_Corpus`; its verification is unchanged."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        vocab_size = int(self.model_runner.model_config.vocab_size)
        trees = DraftTrees(read_options(os.environ), vocab_size, self.draft_token_num)
        self.ngram_corpus = _Corpus(trees)
        self.max_trie_depth = self.draft_token_num + 1  # of texts, so many last tokens are passed

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        self.ngram_corpus.requests = batch.reqs
        super()._prepare_for_speculative_decoding(batch)

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Nothing: texts are read when they are drafted for."""


class _Corpus:
    """What NGRAMWorker calls of its corpus.

    Attributes:
        requests: of the batch that is drafted for.
    """

    def __init__(self, trees: DraftTrees) -> None:
        self._trees = trees
        self.requests: Sequence[Any] = ()

    def batch_get(
        self, req_ids: list[str], batch_tokens: list[list[int]], total_lens: list[int]
    ) -> tuple[Any, Any]:
        """Token ids (B*N,) and mask (B*N*N,) of a tree for each request."""
        rows = zip(self.requests, req_ids, batch_tokens, total_lens, strict=True)
        return self._trees.draft(
            [
                Request(name, length, tail, partial(_text_of, req, tail, length), _tenant_of(req))
                for req, name, tail, length in rows
            ]
        )

    def erase_match_state(self, req_ids: list[str]) -> None:
        """Requests that left the batch."""
        self._trees.forget(req_ids)

    def reset(self) -> None:
        """Forget all texts."""
        self._trees.clear()

    def synchronize(self) -> None:
        """Nothing: no thread inserts texts."""


def _text_of(request: Any, tail: Sequence[int], length: int) -> list[int]:
    """A request's text: what SGLang has processed, and the rest of `length` from its tail."""
    text = [*request.origin_input_ids_unpadded, *request.output_ids]
    return text + list(tail[len(tail) - (length - len(text)) :]) if length > len(text) else text


def _tenant_of(request: Any) -> str:
    """What a request names: its LoRA adapter, and its `extra_key` (cache salt)."""
    adapter, key = getattr(request, "lora_id", None), getattr(request, "extra_key", None)
    return f"{adapter or ''}/{key or ''}" if adapter or key else ""


def register_algorithm() -> None:
    """Register `LATTICE_BPD`, once in a process.

    Raises:
        ImportError: NGRAMWorker of another shape.
    """
    _check_release()
    try:
        SpeculativeAlgorithm.from_string(NAME)
    except ValueError:
        register = SpeculativeAlgorithm.register(
            NAME, supports_overlap=True, spec_class=LatticeAlgorithm
        )
        register(lambda _server_args: LatticeWorker)


def _check_release() -> None:
    for name, expected in _METHODS.items():
        method = getattr(NGRAMWorker, name, None)
        found = None if method is None else list(inspect.signature(method).parameters)
        if found != expected:
            raise ImportError(
                f"lattice-bpd-sglang: NGRAMWorker.{name} of SGLang {sglang_version} has the "
                f"parameters {found}; expected {expected}, as in {', '.join(TESTED)}: install one "
                "of these, or uninstall lattice-bpd-sglang"
            )
    if sglang_version not in TESTED:
        _LOGGER.warning(
            "lattice-bpd-sglang was tested with SGLang %s, this is %s; its NGRAM worker has the "
            "same methods", ", ".join(TESTED), sglang_version,
        )  # fmt: skip
