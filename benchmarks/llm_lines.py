"""The lines of bench_llm.py: each a way of decoding, from transformers or ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peer_drafters import CallCounter, generate_with_transformers
from torch.utils._triton import has_triton
from transformers.generation.candidate_generator import CandidateGenerator

from lattice_bpd.decode import generate, load_drafter
from lattice_bpd.decode.state.model import HiddenStateHeads, as_draft_heads
from lattice_bpd.draft.config import STRATEGIES
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.verify import CausalLMTarget

Stages = dict[str, float]
# Token ids, seconds by stage, and the accepted draft tokens of each call after the first.
Decode = Callable[[list[int], int], tuple[list[int], Stages, list[int]]]
NODES = 16
GREEDY = "transformers greedy"
PEERS: dict[str, dict[str, Any]] = {
    GREEDY: {},
    "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
}
COMPILED = "transformers greedy, static cache and compiled"
HEADS_CHAIN = "transformers assisted, heads"
BUILT = "drafter of the folder"
LLAMA_CPP = "llama.cpp greedy"


class Ours(NamedTuple):
    """Arguments of `generate`; sources: of "lm", "heads" and "rescorer" those it is given."""

    strategy: str
    sources: tuple[str, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012
    quick: bool = True


SIZES: dict[str, dict[str, Any]] = {
    **{f"{nodes} nodes": {"max_nodes": nodes} for nodes in (NODES, 36)}, "any size": {},
}  # fmt: skip
MIXTURES: dict[str, tuple[str, ...]] = {
    "text": (),
    "text + LM": ("lm",),
    "text + LM + heads": ("lm", "heads"),
}
OURS = {
    "greedy, kernels of the core": Ours("greedy"),
    # The strategies of Kim et al. 2024, with weights that suit this model.
    "BPD": Ours("bpd", ("heads",), quick=False),
    "1-best, heads + LM": Ours("ngram", ("heads", "lm"), {"alpha": 0.5}, quick=False),
    "1-best, heads + rescorer": Ours("neural", ("heads", "rescorer"), {"alpha": 0.5}, quick=False),
    "16-best, heads": Ours("p_best", ("heads",), quick=False),
    "16-best, heads + LM": Ours("p_best", ("heads", "lm"), {"alpha": 1.0}, quick=False),
    "tree, heads": Ours("tree", ("heads",), {"max_nodes": NODES}, quick=False),
    "tree, heads + LM": Ours(
        "tree", ("heads", "lm"), {"max_nodes": NODES, "alpha": 0.5, "temperature": 1.5}
    ),
    **{
        f"mixture, {names}, {size}": Ours("mixture", sources, options, size != "36 nodes")
        for size, options in SIZES.items()
        for names, sources in MIXTURES.items()
    },
    # The same without the target's own predictions.
    **{
        f"mixture, {names}, {size}, no predictions": Ours(
            "mixture", sources, {**options, "sources": (*sources, "text")}, quick=False
        )
        for size, options in SIZES.items()
        for names, sources in MIXTURES.items()
    },
}


class Run(NamedTuple):
    """One prompt decoded once.

    Attributes:
        output: token ids.
        calls: of the target, counted from outside.
        seconds: wall time by stage; "total" is measured from outside.
        accepted: draft tokens of each call after the first; empty where they are not known.
    """

    output: list[int]
    calls: int
    seconds: Stages
    accepted: list[int]


@dataclass
class Line:
    """One way of decoding, and its runs in the order of the prompts.

    Attributes:
        name: in tables and results.
        decode: prompt, most new tokens -> output, seconds by stage, with "calls" if it counts them,
            accepted draft tokens.
        counts_calls: whether it counts its own calls: most of transformers do not.
        prepare: longest prompt, most new tokens -> None, before any run is measured.
    """

    name: str
    decode: Decode
    counts_calls: bool = False
    prepare: Callable[[int, int], None] | None = None
    runs: list[Run] = field(default_factory=list)

    def run(self, prompt: list[int], tokens: int, counter: CallCounter) -> Run:
        """Decodes a prompt."""
        # A hook would change how our loop calls the model, so those lines count their own calls.
        counter.reset()
        with contextlib.nullcontext() if self.counts_calls else counter:
            start = time.perf_counter()
            output, stages, accepted = self.decode(prompt, tokens)
            total = time.perf_counter() - start
        calls = int(stages.pop("calls")) if self.counts_calls else counter.calls
        return Run(output, calls, {**stages, "total": total}, accepted)


def make_lines(
    model: Any, own: Any, sources: dict[str, Any], *, quick: bool
) -> tuple[list[Line], dict[str, str]]:
    """All lines that the sources allow, and why others are left out.

    Args:
        model: a causal LM of `transformers`.
        own: the same with the core's kernels, for our lines.
        sources: "lm", "heads", "rescorer", a small causal LM, and "drafter", the folder of a built
            drafter, if there are any.
        quick: fewer of our lines.
    """
    lines = [Line(name, _transformers(model, options)) for name, options in PEERS.items()]
    skipped = {}
    if reason := why_not_compiled(model.device.type):
        skipped[COMPILED] = reason
    else:
        lines.insert(1, make_compiled_line(model))
    if "heads" not in sources:
        skipped[HEADS_CHAIN] = "no heads"
    elif not hasattr(CandidateGenerator, "requires_model_outputs"):
        skipped[HEADS_CHAIN] = "transformers before 5.24 gives no hidden states to drafters"
    else:
        heads = as_draft_heads(sources["heads"], CausalLMTarget(model))
        if isinstance(heads, HiddenStateHeads):
            lines.append(Line(HEADS_CHAIN, _heads_chain(model, heads)))
        else:
            skipped[HEADS_CHAIN] = "these heads read more than the last hidden state"
    for name, ours in OURS.items():
        missing = [source for source in ours.sources if source not in sources]
        if missing or ours.strategy not in STRATEGIES:
            skipped[name] = f"no {' and no '.join(missing or [ours.strategy])}"
        elif ours.quick or not quick:
            names = {"rescorer": "lm"}  # what `generate` calls it
            given = {names.get(name, name): sources[name] for name in ours.sources}
            lines.append(Line(name, _ours(own, ours, given), counts_calls=True))
    if "drafter" in sources:
        built = _built(own, sources["drafter"], sources.get("heads"))
        lines.append(Line(BUILT, built, counts_calls=True))
    return lines, skipped


def make_llama_cpp_lines(gguf: str, threads: int, lm: Any = None) -> list[Line]:
    """llama-cpp-python's greedy decoding, its prompt lookup, and our drafts.

    Args:
        gguf: the model's file.
        threads: of llama.cpp.
        lm: n-gram LM of the model's token ids; None: drafts from the text alone.
    """
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    from lattice_bpd_llama_cpp import NGramDraftModel, load

    options = {
        "n_ctx": 4096, "n_threads": threads, "n_threads_batch": threads, "verbose": False,
    }  # fmt: skip
    verifying = Llama(gguf, logits_all=True, **options)
    vocab_size = verifying.n_vocab()
    drafts = {
        "llama.cpp prompt lookup": LlamaPromptLookupDecoding(num_pred_tokens=10),
        "text, always drafted": NGramDraftModel(vocab_size=vocab_size),
        "text + LM, always drafted": lm and NGramDraftModel(lm, vocab_size=vocab_size),
    }
    models = {LLAMA_CPP: Llama(gguf, **options), "text": load(gguf, **options)}
    models |= {"text + LM": load(gguf, lm, **options)} if lm else {}
    lines = [(name, verifying, draft) for name, draft in drafts.items() if draft is not None]
    lines[:0] = [(name, model, model.draft_model) for name, model in models.items()]
    return [Line(name, _llama_cpp(model, draft), counts_calls=True) for name, model, draft in lines]


def _llama_cpp(llama: Any, draft: Any) -> Decode:
    inner = llama.eval

    def decode(prompt: list[int], tokens: int) -> tuple[list[int], Stages, list[int]]:
        calls, output = [0], []

        def count(tokens: Any) -> None:
            calls[0] += 1
            inner(tokens)

        llama.eval, llama.draft_model = count, draft
        llama.reset()  # the prompt is read anew
        for token in llama.generate(prompt, temp=0.0, reset=False):
            output.append(token)
            if token == llama.token_eos() or len(output) == tokens:
                break
        return output, {"calls": calls[0]}, []

    return decode


def _transformers(model: Any, options: dict[str, Any]) -> Decode:
    ends = model.generation_config.eos_token_id
    stops = ends if isinstance(ends, list) else [] if ends is None else [ends]

    def decode(prompt: list[int], tokens: int) -> tuple[list[int], Stages, list[int]]:
        return generate_with_transformers(model, prompt, tokens, stops, **options), {}, []

    return decode


def why_not_compiled(device: str) -> str | None:
    """Why `generate` compiles nothing on a device by `cache_implementation="static"`, or None."""
    if device != "cuda":
        return "transformers compiles on a GPU"
    if not has_triton():
        return "torch.compile finds no triton"
    compilers = filter(None, (os.environ.get("CC"), "gcc", "clang"))
    return None if any(map(shutil.which, compilers)) else "triton finds no C compiler"


def make_compiled_line(model: Any, **options: Any) -> Line:
    """What a user gets by one option: a static cache, and each step's call as a CUDA graph.

    The cache has room for the longest prompt from the beginning, since another size is compiled
    again. A hook that counts calls would be compiled too, so its calls are its tokens.

    Args:
        model: a causal LM of `transformers`.
        options: more arguments of `generate`.
    """
    given = {"cache_implementation": "static", **options}
    inner = _transformers(model, given)

    def decode(prompt: list[int], tokens: int) -> tuple[list[int], Stages, list[int]]:
        output, _, _ = inner(prompt, tokens)
        return output, {"calls": len(output)}, []

    def prepare(longest: int, tokens: int) -> None:
        for _ in range(2):  # graphs are recorded after a first call
            generate_with_transformers(
                model, [1] * longest, tokens, [], min_new_tokens=tokens, **given
            )  # fmt: skip

    return Line(COMPILED, decode, counts_calls=True, prepare=prepare)


class HeadsChain(CandidateGenerator):
    """The best token of each head, for transformers' assisted decoding.

    Args:
        heads: on the last hidden state.
        max_length: most tokens of a text.
    """

    requires_model_outputs = True
    model_kwargs_overrides: dict[str, Any] = {"output_hidden_states": True}  # noqa: RUF012

    def __init__(self, heads: HiddenStateHeads, max_length: int) -> None:
        self.heads, self.max_length, self._drafted = heads, max_length, 0

    def get_candidates(
        self, input_ids: torch.Tensor, *, model_outputs: Any = None, n_last_matches: Any = 0,
        **_context: Any,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        """The text with a draft; without one before the prompt was read."""
        remaining = self.max_length - input_ids.shape[1] - 1
        if model_outputs is None or remaining < 1:
            self._drafted = 0
            return input_ids, None
        states = model_outputs.hidden_states[-1][0]
        state = states[len(states) - 1 - self._drafted + int(n_last_matches)][None]
        slots: Any = self.heads.logits(state, input_ids[0, -1:].tolist())
        if isinstance(slots, LatticeInput):
            draft = torch.as_tensor(slots.token_ids)[:, :, 0]
        else:
            draft = slots.argmax(dim=-1)
        draft = draft[:, :remaining].to(input_ids.device, input_ids.dtype)
        self._drafted = draft.shape[1]
        return torch.cat([input_ids, draft], dim=1), None

    def update_candidate_strategy(self, *_arguments: Any) -> None:
        """Nothing to learn."""


def _heads_chain(model: Any, heads: HiddenStateHeads) -> Decode:
    """Transformers' assisted decoding, whose drafts are the chain of strategy "bpd"."""
    assisted = _transformers(model, {"prompt_lookup_num_tokens": 1})  # replaced by the chain

    def make(generation_config: Any, **_arguments: Any) -> HeadsChain:
        return HeadsChain(heads, generation_config.max_length)

    def decode(prompt: list[int], tokens: int) -> tuple[list[int], Stages, list[int]]:
        model._get_candidate_generator = make
        try:
            return assisted(prompt, tokens)
        finally:
            del model._get_candidate_generator

    return decode


def _ours(model: Any, ours: Ours, given: dict[str, Any]) -> Decode:
    return _by_generate(model, ours.strategy, {**given, **ours.options})


def _built(model: Any, folder: Path, heads: Any) -> Decode:
    """The drafter that `lattice-bpd build` chose, with its fitted weights."""
    drafter = load_drafter(folder)
    uses_heads = getattr(drafter, "has_heads", False)
    return _by_generate(model, drafter, {"heads": heads} if uses_heads else {})


def _by_generate(model: Any, drafter: Any, options: dict[str, Any]) -> Decode:
    def decode(prompt: list[int], tokens: int) -> tuple[list[int], Stages, list[int]]:
        result = generate(model, prompt, drafter, max_new_tokens=tokens, **options)
        stats = result.stats
        seconds = {**stats.seconds, "calls": stats.target_calls}
        return list(result.token_ids), seconds, stats.accept_lengths

    return decode
