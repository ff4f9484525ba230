"""Model runner V2 of vLLM: the mixture without heads, and an n-gram term for DFlash2 and LiLiCorr.

Registered as a general plug-in of vLLM. With the method `ngram_gpu` (or `ngram`) and options of
ours in `additional_config` it takes the place of vLLM's own n-gram speculator, so that runner,
scheduler and checks of the configuration are vLLM's own for that method.

The seam wants the drafts of all requests as one tensor, of equal lengths, when `propose` returns.
They are needed when the next step's inputs are prepared: until then the copy of the new tokens to
the CPU and the scheduler's work run beside the target. Only structured outputs and pipeline
parallelism read drafts at once.

With the method `dflash` and a drafter whose candidates have transition scores, options of ours add
the term of an n-gram LM and of the text to these scores, on the device; the walk is vLLM's own.
"""
# ruff: noqa: ARG002

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_vllm.batch import EngineStep
from lattice_bpd_vllm.counters import DraftCounters
from lattice_bpd_vllm.files import load_parts
from lattice_bpd_vllm.options import CONFIG_KEY, DrafterOptions
from lattice_bpd_vllm.runner_v1 import LOGGER, TESTED_VERSIONS
from lattice_bpd_vllm.slot_sources import check_vocabulary
from lattice_bpd_vllm.step_drafter import StepDrafter
from lattice_bpd_vllm.support import check_options
from lattice_bpd_vllm.targets import TargetInfo

_SEAM = "vllm.v1.worker.gpu.spec_decode"
_RUNNER = "vllm.v1.worker.gpu.model_runner"
_INIT = ("vllm_config", "device", "req_states")
_PROPOSE = (
    "self", "input_batch", "attn_metadata", "slot_mappings", "last_hidden_states",
    "aux_hidden_states", "num_sampled", "num_rejected", "last_sampled",
)  # fmt: skip
_SAMPLE = (
    "self", "candidate_ids", "scores", "num_reqs", "sample_pos", "idx_mapping", "temperature",
    "seeds", "draft_tokens", "draft_logits", "use_fp64",
)  # fmt: skip
_TEXT_WEIGHT = 0.5  # of the text's n-grams beside the LM's


class _Step(NamedTuple):
    """What `propose` was told, until its drafts are searched.

    Attributes:
        names: (B,) of the requests.
        rows: (B,) their rows in vLLM's `RequestState`, on the CPU.
        device_rows: the same where vLLM has them.
        tails: (B, 2 + K + 1) int32 on the CPU once `copied` is over: length of the text, tokens
            that the step kept, and the last K + 1 tokens.
        new: indices in the batch of texts that are not known yet.
        texts: (new, longest) int32, these texts, likewise.
        copied: an event; None: nothing is copied asynchronously.
        verified: draft tokens of each request in the step; None: there were none.
        num_prompt_tokens: (B,) ints.
        max_tokens: (B,) ints, see `EngineStep`.
        num_drafts: tokens of each draft.
    """

    names: Sequence[str]
    rows: npt.NDArray[Any]
    device_rows: Tensor
    tails: Tensor
    new: list[int]
    texts: Tensor | None
    copied: Any
    verified: list[int] | None
    num_prompt_tokens: npt.NDArray[Any]
    max_tokens: list[int | None]
    num_drafts: int


class MixtureSpeculator:
    """Drafts for model runner V2; see vLLM's `BaseSpeculator`, whose methods it has.

    Args:
        vllm_config: vLLM's configuration, with options of ours.
        device: of the target.
        req_states: vLLM's `RequestState`.

    Raises:
        OSError: a file cannot be read.
        TypeError: options of wrong types.
        ValueError: options out of range, an LM of another target, draft heads, a store.
    """

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: Any, req_states: Any) -> None:
        options = DrafterOptions.from_mapping(vllm_config.additional_config[CONFIG_KEY])
        parts = load_parts(options)
        if parts.heads is not None or parts.draft != "mixture" or options.store is not None:
            raise ValueError(
                f"{CONFIG_KEY}: model runner V2 drafts from the text and LMs only, and draft heads "
                'or store are given; expected "sources": ["lm", "text"], or the method '
                "custom_class, which uses model runner V1"
            )
        config, parallel = vllm_config.model_config, vllm_config.parallel_config
        self._length = int(vllm_config.speculative_config.num_speculative_tokens)
        # No logits are computed here, so the vocabulary is that of the configuration.
        target = TargetInfo(
            lambda _: None, config.get_hidden_size(), config.get_vocab_size(), config.dtype,
            torch.device(device),
        )  # fmt: skip
        self._drafter = StepDrafter(
            parts, target, options, self._length, LOGGER, has_equal_lengths=True,
            is_sharded=parallel.tensor_parallel_size > 1,
        )  # fmt: skip
        self._waits = parallel.pipeline_parallel_size > 1  # drafts are sent to the other stages
        self._states, self._device = req_states, torch.device(device)
        size, positions = int(req_states.max_num_reqs), int(req_states.max_model_len)
        self._max_model_len = positions
        self._names = [""] * size
        self._token_ids = np.zeros((size, positions), np.int32)
        self._num_tokens = np.zeros(size, np.int64)
        self._drafts = torch.zeros(size, self._length, dtype=torch.int64, device=self._device)
        self._is_asynchronous = self._device.type == "cuda"
        self._step: _Step | None = None

    @property
    def counters(self) -> DraftCounters:
        """What was drafted so far."""
        return self._drafter.counters

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """There is no graph."""

    def capture(self) -> None:
        """There is no graph."""

    @torch.inference_mode()
    def propose(
        self, input_batch: Any, attn_metadata: Any, slot_mappings: Any, last_hidden_states: Any,
        aux_hidden_states: Any, num_sampled: Tensor, num_rejected: Any, last_sampled: Any,
        *args: Any, dummy_run: bool = False, num_speculative_tokens: int | None = None,
        **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        """Room for the drafts, which `finish` fills.

        Args:
            input_batch: vLLM's `InputBatch`.
            attn_metadata: not used, as all that is not named here.
            slot_mappings: not used.
            last_hidden_states: not used.
            aux_hidden_states: not used.
            num_sampled: (B,) tokens that each request kept in this step; 0: its prompt is not
                complete.
            num_rejected: not used.
            last_sampled: not used.
            args: not used.
            dummy_run: whether there are no requests.
            num_speculative_tokens: tokens to draft for each request; None: as many as configured.
            kwargs: not used.

        Returns:
            (B, K) int64.
        """
        drafts = self._drafts[: input_batch.num_reqs]
        if dummy_run:
            return drafts
        self.finish()
        length = self._length if num_speculative_tokens is None else num_speculative_tokens
        self._step = self._copy(input_batch, num_sampled, length)
        if self._waits or input_batch.has_structured_output_reqs:
            self.finish()
            drafts.copy_(self._states.draft_tokens[input_batch.idx_mapping])
        return drafts

    def finish(self) -> None:
        """Search the drafts of the last `propose`, and give them to vLLM."""
        step, self._step = self._step, None
        if step is None:
            return
        if step.copied is not None:
            step.copied.synchronize()
        tails = step.tails.numpy()
        kept = self._update_texts(step, tails)
        chains = self._drafter.propose(kept, lambda: self._read(step, kept))
        # What is not drafted is the last token again: a draft like others, to vLLM.
        padded = np.repeat(tails[:, -1:].astype(np.int64), self._length, axis=1)
        for row, chain in zip(padded, chains, strict=True):
            row[: len(chain)] = chain
        self._states.draft_tokens[step.device_rows] = self._to_device(torch.from_numpy(padded))

    def _to_device(self, tensor: Tensor) -> Tensor:
        """A CPU tensor on the device; from pageable memory, a copy would wait for the step."""
        if not self._is_asynchronous:
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _copy(self, batch: Any, num_sampled: Tensor, num_drafts: int) -> _Step:
        """The copy to the CPU of what is new."""
        states, rows, index = self._states, batch.idx_mapping_np.copy(), batch.idx_mapping
        token_ids, lengths = states.all_token_ids.gpu, states.total_len.gpu[index].long()
        offsets = torch.arange(-self._length - 1, 0, device=self._device)
        positions = (lengths[:, None] + offsets).clamp_min(0)
        last = token_ids[index[:, None], positions]
        tails = torch.cat([lengths[:, None], num_sampled[: len(rows), None], last], dim=1)
        ends = batch.num_computed_tokens_np + batch.num_scheduled_tokens
        names = list(batch.req_ids)
        new = [
            i
            for i, (name, row) in enumerate(zip(names, rows.tolist(), strict=True))
            if self._names[row] != name and ends[i] >= batch.prefill_len_np[i]
        ]
        texts = None
        if new:
            longest = int(batch.prefill_len_np[new].max()) + self._length + 1
            texts = token_ids[index[self._to_device(torch.tensor(new, device="cpu"))], :longest]
        copied: Any = None
        if self._is_asynchronous:
            tails = _to_pinned(tails)
            texts = None if texts is None else _to_pinned(texts)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        verified = batch.num_draft_tokens_per_req
        prompts = states.prompt_len.np[rows].copy()
        return _Step(
            names, rows, index, tails.int(), new, texts, copied,
            None if verified is None else verified.tolist(), prompts,
            (states.max_seq_len[rows] - prompts).tolist(), num_drafts,
        )  # fmt: skip

    def _update_texts(self, step: _Step, tails: npt.NDArray[np.int32]) -> list[list[int]]:
        """The tokens that each request kept; those of unknown texts are not drafted for."""
        for number, i in enumerate(step.new):
            row, length, num_kept = step.rows[i], tails[i, 0], tails[i, 1]
            self._names[row] = step.names[i] if num_kept else ""
            assert step.texts is not None
            known = length - num_kept
            self._token_ids[row, :known] = step.texts[number, :known].numpy()
            self._num_tokens[row] = known
        kept: list[list[int]] = []
        for row, values in zip(step.rows.tolist(), tails, strict=True):
            length, num_kept = int(values[0]), int(values[1])
            if num_kept and self._num_tokens[row] + num_kept != length:
                self._names[row], num_kept = "", 0  # read again: vLLM dropped or added some of it
            if not num_kept:
                kept.append([])
                continue
            self._token_ids[row, length - num_kept : length] = values[len(values) - num_kept :]
            self._num_tokens[row] = length
            kept.append(values[len(values) - num_kept :].tolist())
        return kept

    def _read(self, step: _Step, kept: list[list[int]]) -> EngineStep:
        texts: Any = _Rows(self._token_ids, step.rows)
        return EngineStep(
            kept, texts, self._num_tokens[step.rows],
            step.num_prompt_tokens, step.max_tokens, self._max_model_len, step.num_drafts,
            torch.empty(0, device="cpu"), step.verified, step.names, self._states.req_id_to_index,
        )  # fmt: skip


class _Rows:
    """Rows of an array in the order of a batch, without a copy."""

    def __init__(self, values: npt.NDArray[Any], rows: npt.NDArray[Any]) -> None:
        self._values, self._rows = values, rows

    def __getitem__(self, key: tuple[int, slice]) -> npt.NDArray[Any]:
        request, tokens = key
        return self._values[self._rows[request], tokens]


def _to_pinned(values: Tensor) -> Tensor:
    """A copy on the CPU, complete after an event that is recorded now."""
    pinned = torch.empty(values.shape, dtype=torch.int32, pin_memory=True, device="cpu")
    return pinned.copy_(values, non_blocking=True)


def register() -> None:
    """The general plug-in of vLLM; wraps `init_speculator` and the check of options, once."""
    check_options(importlib.import_module("vllm.config").VllmConfig)
    try:
        seam = importlib.import_module(_SEAM)
    except ImportError:  # a release without model runner V2
        return
    original = seam.init_speculator
    if getattr(original, "_wrapped_by_lattice_bpd", False):
        return

    @functools.wraps(original)
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        additional = vllm_config.additional_config
        is_ours = isinstance(additional, dict) and additional.get(CONFIG_KEY) is not None
        if is_ours and vllm_config.speculative_config.use_ngram():
            return make_speculator(vllm_config, device, req_states, original)
        speculator = original(vllm_config, device, req_states)
        if is_ours and vllm_config.speculative_config.method == "dflash":
            version = importlib.import_module("vllm").__version__
            check_seam({original: _INIT}, version, LOGGER)
            add_term(speculator, vllm_config, device, req_states, version)
        return speculator

    init_speculator._wrapped_by_lattice_bpd = True  # type: ignore[attr-defined]
    seam.init_speculator = init_speculator  # type: ignore[attr-defined]
    runner = sys.modules.get(_RUNNER)
    if runner is not None:
        runner.init_speculator = init_speculator  # type: ignore[attr-defined]


def make_speculator(vllm_config: Any, device: Any, req_states: Any, original: Any) -> Any:
    """A `MixtureSpeculator` that is a `BaseSpeculator` of this release.

    Args:
        vllm_config: see `MixtureSpeculator`, as for the next two.
        device: see there.
        req_states: see there.
        original: vLLM's `init_speculator`.

    Raises:
        ImportError: a release whose seam has other parameters.
    """
    base = importlib.import_module(f"{_SEAM}.speculator").BaseSpeculator
    runner: Any = importlib.import_module(_RUNNER).GPUModelRunner
    version = importlib.import_module("vllm").__version__
    check_seam({original: _INIT, base.propose: _PROPOSE}, version, LOGGER)
    finish_before_inputs(runner)
    kind: Any = type("LatticeSpeculator", (MixtureSpeculator, base), {})
    LOGGER.info("lattice-bpd: drafts in model runner V2; prompt_lookup_min and _max are not used")
    return kind(vllm_config, device, req_states)


def finish_before_inputs(runner_class: Any) -> None:
    """Wraps `prepare_inputs`, which reads the drafts of the last step; once."""
    prepare = runner_class.prepare_inputs
    if getattr(prepare, "_wrapped_by_lattice_bpd", False):
        return

    @functools.wraps(prepare)
    def prepare_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        finish = getattr(self.speculator, "finish", None)
        if finish is not None:
            finish()
        return prepare(self, *args, **kwargs)

    prepare_inputs._wrapped_by_lattice_bpd = True  # type: ignore[attr-defined]
    runner_class.prepare_inputs = prepare_inputs


def add_term(speculator: Any, vllm_config: Any, device: Any, req_states: Any, version: str) -> None:
    """Adds the term of an n-gram LM, and of the text so far, to a drafter's transition scores.

    `CandidateSampler.sample` gets the scores with the term. Sampled requests stay exact: q of the
    rejection sampler is the row that vLLM's walk sampled from.

    Args:
        speculator: vLLM's, of DFlash2 or LiLiCorr.
        vllm_config: vLLM's configuration, with options of ours.
        device: of the drafter.
        req_states: vLLM's `RequestState`.
        version: of vLLM.

    Raises:
        ImportError: a release whose `sample` has other parameters.
        OSError: a file cannot be read.
        TypeError: options of wrong types.
        ValueError: a drafter without transition scores, no LM or several, one of another target, or
            options that the walk does not use.
    """
    sampler: Any = getattr(speculator, "candidate_sampler", None)
    if sampler is None:
        raise ValueError(
            f"{CONFIG_KEY}: {type(speculator).__name__} has no transition scores to add an LM to; "
            'expected a drafter DFlash2 or LiLiCorr, the method "ngram_gpu", or no options of '
            "lattice_bpd"
        )
    check_seam({type(sampler).sample: _SAMPLE}, version, LOGGER)
    options = DrafterOptions.from_mapping(vllm_config.additional_config[CONFIG_KEY])
    is_best = options.draft == "best"
    expected = (
        f"with {type(speculator).__name__} expected of lm or directory, sources "
        '["lm"] or ["lm", "text"], alpha, draft "best"'
    )
    used = {"directory", "lm", "sources", "alpha", *(("draft",) if is_best else ())}
    options.refuse({one.name for one in fields(options)} - used, expected)
    sources = list(options.sources or ("lm", "text"))
    if "lm" not in sources or not {"lm", "text"}.issuperset(sources):
        raise ValueError(f"{CONFIG_KEY}: sources is {sources}; {expected}")
    if is_best and (speculator.draft_logits is not None or speculator.enable_adaptive_verification):
        raise ValueError(
            f'{CONFIG_KEY}: draft "best" has no probabilities of its tokens; expected '
            'draft_sample_method "greedy" and no adaptive verification, or no draft'
        )
    parts = load_parts(replace(options, alpha=None, draft="mixture", sources=sources))
    if len(parts.lms) != 1:
        raise ValueError(f"{CONFIG_KEY}: found {len(parts.lms)} LMs; expected one")
    columns = vllm_config.model_config.get_vocab_size()
    check_vocabulary(columns, parts.vocab_source, parts.vocab_size)
    from lattice_bpd_vllm.lattice_walk import DeviceLM, walk  # it needs Triton

    lm = DeviceLM.of(parts.lms[0], device)
    alpha = DraftConfig.alpha if options.alpha is None else options.alpha
    cache = _TEXT_WEIGHT if "text" in sources else 0.0
    original = sampler.sample

    @functools.wraps(original)
    def sample(
        candidate_ids: Tensor, scores: Tensor, num_reqs: int, sample_pos: Tensor,
        idx_mapping: Tensor, temperature: Tensor, seeds: Tensor, draft_tokens: Tensor,
        draft_logits: Tensor | None, use_fp64: bool,
    ) -> None:  # fmt: skip
        # The position of the first drafted token is the length of the text.
        rows = slice(None, num_reqs * sampler.num_steps, sampler.num_steps)
        combined, tokens = walk(
            lm, candidate_ids, scores, req_states.all_token_ids.gpu, idx_mapping[rows],
            sample_pos[rows], alpha=alpha, cache=cache, is_best=is_best,
        )  # fmt: skip
        original(
            candidate_ids, combined, num_reqs, sample_pos, idx_mapping, temperature, seeds,
            draft_tokens, draft_logits, use_fp64,
        )  # fmt: skip
        if is_best:
            draft_tokens[:num_reqs] = tokens

    sampler.sample = sample
    LOGGER.info("lattice-bpd: adds an n-gram term to the walk of %s", type(speculator).__name__)


def check_seam(seam: Mapping[Any, Sequence[str]], version: str, logger: logging.Logger) -> None:
    """Warns of an untested release of vLLM, and refuses one with another seam.

    Args:
        seam: functions of vLLM, and the first parameters that each must have.
        version: of vLLM.
        logger: for the warning.

    Raises:
        ImportError: a function has other parameters.
    """
    tested = ", ".join(TESTED_VERSIONS)
    for function, expected in seam.items():
        parameters = tuple(inspect.signature(function).parameters)
        if parameters[: len(expected)] != tuple(expected):
            raise ImportError(
                f"lattice-bpd-vllm: model runner V2 of vLLM {version} is not supported, since "
                f"{function.__name__} has the parameters ({', '.join(parameters)}); expected "
                f"({', '.join(expected)}, ..). Tested: {tested}. Install one of these, or use the "
                "method custom_class"
            )
    if version.split("+")[0] not in TESTED_VERSIONS:
        logger.warning(
            "lattice-bpd-vllm: vLLM %s was not tested; tested: %s. The seam of model runner V2 "
            "fits, so drafting is tried",
            version,
            tested,
        )
