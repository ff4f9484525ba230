"""The targets of bench_peers.py with what drafts for them: trained once, then loaded.

demo     the demo's model (Python code) with its heads and its 4-gram; a draft model is trained
stories  stories260K with the heads, 4-gram and draft model of examples/
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from corpus import ROOT
from transformers import GPTNeoXForCausalLM

from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.cli.progress import ConsoleWatcher
from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.decode.drafters import NoDrafter
from lattice_bpd_kim2024.blockwise import BlockwiseLM, to_drafting
from lattice_bpd_kim2024.demo.library_text import draw_prompts, read_library_sources
from lattice_bpd_kim2024.demo.model_folder import DemoModel, load_demo_model
from lattice_bpd_kim2024.evaluate import Recording, Setting, record
from lattice_bpd_kim2024.heads.joint import TrainOptions
from lattice_bpd_kim2024.heads.self_generated import generate_texts
from lattice_bpd_kim2024.rescorer import train_rescorer
from lattice_bpd_kim2024.small_models import build_small_gpt

NAMES = ("demo", "stories")
TOP_K = NUM_DRAFTS = 16
MAX_NODES = 36


@dataclass(frozen=True)
class Size:
    """How much a run trains and decodes.

    Attributes:
        prompts: held-out prompts of each target.
        timed_prompts: the first so many are timed.
        rounds: timed runs of each of these by each line.
        tune_prompts: prompts that alpha, temperature and Medusa's tree are chosen on.
        alphas: weights of the n-gram LM that are tried.
        temperatures: of chains and trees that are tried.
        demo_texts: continuations that the demo's draft model learns from.
        draft_steps: of its training.
        head_steps: of the heads of stories260K, otherwise as `stories260k.py --quick`.
        budgets: nodes of trees that are compared in tokens per call.
    """

    prompts: int = 24
    timed_prompts: int = 4
    rounds: int = 5
    tune_prompts: int = 24
    alphas: tuple[float, ...] = (0.4, 0.6, 0.8, 1.0, 1.2, 1.6)
    temperatures: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0)
    demo_texts: int = 384
    draft_steps: int = 300
    head_steps: int = 600
    budgets: tuple[int, ...] = (8, 18, 72)


FULL = Size()
QUICK = Size(4, 2, 1, 8, (0.6, 1.2), (1.0, 2.5), 128, 60, 150, (8, 72))


@dataclass
class Target:
    """A target, its drafters, and held-out prompts.

    Attributes:
        name: of the target.
        about: what it is, for the results.
        heads: target and heads.
        model: the same as our loop takes it.
        lm: n-gram LM over its tokens.
        draft_model: a small causal LM.
        prompts: token ids.
        tune_prompts: others, to choose options on.
        max_new_tokens: decoded after each prompt.
        stop_token_ids: decoding ends after these.
    """

    name: str
    about: str
    heads: BlockwiseLM
    lm: NGramLM
    draft_model: Any
    prompts: list[list[int]]
    tune_prompts: list[list[int]]
    max_new_tokens: int
    stop_token_ids: list[int]
    model: DraftingModel = field(init=False)

    def __post_init__(self) -> None:
        self.model = to_drafting(self.heads)

    @property
    def base(self) -> Any:
        """The target alone."""
        return self.heads.base

    @property
    def limits(self) -> dict[str, Any]:
        """Where decoding ends, as arguments of `decode`."""
        return {"max_new_tokens": self.max_new_tokens, "stop_token_ids": self.stop_token_ids}


@dataclass
class Fit:
    """What was chosen on the tuning prompts.

    Attributes:
        accuracies: (H, k) float64, how often guess i of slot j was the target's token.
        options: best options by strategy.
        tokens: of the tuning outputs.
    """

    accuracies: npt.NDArray[np.float64]
    options: dict[str, DraftConfig]
    tokens: int


def fit(target: Target, size: Size) -> Fit:
    """Measure the heads and tune our strategies on the target's greedy output of other prompts."""
    outputs = decode(target.model, target.tune_prompts, NoDrafter(), **target.limits)
    recording = record(
        target.heads, target.tune_prompts, [found.token_ids for found in outputs], top_k=TOP_K,
        max_new_tokens=target.max_new_tokens,
    )  # fmt: skip
    grids: dict[Setting, Any] = {
        Setting("p_best", "", "p_best", uses_lm=True): product(size.alphas, [1.0]),
        Setting("chain", "", "chain", uses_lm=True): product(size.alphas, size.temperatures),
        Setting("tree_0gram", "", "tree"): product([0.0], size.temperatures),
        Setting("tree", "", "tree", uses_lm=True): product(size.alphas, size.temperatures),
    }
    options = {}
    for setting, grid in grids.items():
        tried = [
            DraftConfig(
                setting.strategy, TOP_K, NUM_DRAFTS, MAX_NODES, alpha=alpha, temperature=temperature
            )
            for alpha, temperature in grid
        ]
        values = [recording.block_efficiency(setting, target.lm, option) for option in tried]
        options[setting.name] = tried[int(np.argmax(values))]
    return Fit(measure_accuracies(recording), options, len(recording))


def measure_accuracies(recording: Recording) -> npt.NDArray[np.float64]:
    """(H, k) shares of positions at which guess i of slot j is the target's own token."""
    right = np.zeros((recording.num_slots, recording.top_k))
    count = np.zeros((recording.num_slots, 1))
    for _, batch in recording.batches(np.arange(len(recording))):
        known = batch.wanted >= 0
        hits = (batch.candidates.token_ids == batch.wanted[..., None]) & known[..., None]
        right[: hits.shape[1]] += hits.sum(axis=0)
        count[: hits.shape[1], 0] += known.sum(axis=0)
    return right / np.maximum(count, 1)


def load_demo(work: Path, size: Size, watcher: ConsoleWatcher) -> Target:
    """The demo's model. Its draft model learns from what it writes after pieces of library code."""
    demo, corpus = load_demo_model(), read_library_sources()
    settings = demo.settings
    room = settings.prompt_length, settings.max_new_tokens

    def draw(texts: list[str], count: int) -> list[list[int]]:
        return draw_prompts(demo.encode(texts), count, *room, settings.seed)

    return Target(
        "demo",
        "the demo's model: GPT-NeoX, 12 layers, D = 96, 1.4 M parameters, 8 heads, Python code",
        demo.model, demo.lm, _demo_draft_model(work, demo, corpus.train, size, watcher),
        draw(corpus.test, size.prompts), draw(corpus.tune, size.tune_prompts),
        settings.max_new_tokens, [settings.end_of_text],
    )  # fmt: skip


def _demo_draft_model(
    work: Path, demo: DemoModel, texts: list[str], size: Size, watcher: ConsoleWatcher
) -> Any:
    """A GPT of one layer with the target's width and vocabulary."""
    length, room = 112, 96
    digest = hashlib.sha256(repr((demo.settings, size.demo_texts, size.draft_steps)).encode())
    path = work / f"demo-draft-model-{digest.hexdigest()[:8]}"
    if not (path / "config.json").is_file():
        prompts = draw_prompts(demo.encode(texts), size.demo_texts, length, 0, seed=1)
        watcher.begin("demo: continuing training text", -(-len(prompts) // 256))
        rows = generate_texts(demo.model.base, prompts, room, on_batch=watcher.advance)
        watcher.end()
        made: Any = build_small_gpt(
            demo.model.vocab_size, hidden_size=96, num_layers=1, num_heads=2, max_positions=256
        ).base
        options = TrainOptions(
            steps=size.draft_steps, batch_size=32, sequence_length=128, precision="fp32"
        )
        watcher.begin("demo: training the draft model", options.steps)
        train_rescorer(made, rows[:, length - 16 :].reshape(-1), options, _advance(watcher))
        watcher.end()
        temporary = path.with_name(f".{path.name}")
        made.save_pretrained(temporary)
        temporary.replace(path)
    return GPTNeoXForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


def _advance(watcher: ConsoleWatcher) -> Any:
    return lambda report: watcher.advance(note=f"loss {report.losses[0]:.2f}")


def load_stories(work: Path, data: Path, size: Size, watcher: ConsoleWatcher) -> Target:
    """stories260K with heads.

    Raises:
        FileNotFoundError: the model or the stories are not in the data folder.
    """
    parts = _import_examples()
    folder, text = data / "stories260K", data / "tinystories" / "tinystories_10k.txt"
    for file in (folder / "stories260K.bin", text):
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} is missing; expected the model of llama2.c and TinyStories; give their "
                "folder by --data DIR, or measure --targets demo"
            )
    args = parts.stories.read_arguments(
        ["--model", str(folder), "--text", str(text), "--work", str(work)]
    )
    recipe = replace(
        parts.shared.QUICK, steps=size.head_steps, test_prompts=size.prompts,
        tune_prompts=size.tune_prompts,
    )  # fmt: skip
    made = parts.shared.prepare(args, recipe, "stories", watcher)
    small = parts.draft.SMALL
    small = replace(small, training=replace(small.training, steps=size.draft_steps))
    return Target(
        "stories",
        "stories260K: Llama, 5 layers, D = 64, 0.26 M parameters, TinyStories, frozen, 8 heads",
        made.model, made.lm, parts.scorers.cached_rescorer(made.work, made.rows, small, watcher),
        made.found.test, made.found.tune, recipe.max_new_tokens, [parts.shared.BEGIN],
    )  # fmt: skip


def _import_examples() -> SimpleNamespace:
    """The modules of examples/ that train these parts."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import stories260k
        import stories260k_draft
        import stories260k_parts
        import stories260k_scorers
    finally:
        sys.path.remove(str(ROOT / "examples"))
    return SimpleNamespace(
        stories=stories260k, draft=stories260k_draft, shared=stories260k_parts,
        scorers=stories260k_scorers,
    )  # fmt: skip


def load_targets(
    names: list[str], work: Path, data: Path, size: Size, watcher: ConsoleWatcher
) -> list[Target]:
    """The targets of these names, in their order.

    Raises:
        ValueError: an unknown name.
        FileNotFoundError: see `load_stories`.
    """
    if not set(names) <= set(NAMES):
        raise ValueError(f"--targets is {','.join(names)!r}; expected of {', '.join(NAMES)}")
    work.mkdir(parents=True, exist_ok=True)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of smoothing on little text
        if "demo" in names:
            found["demo"] = load_demo(work, size, watcher)
        if "stories" in names:
            found["stories"] = load_stories(work, data, size, watcher)
    return [found[name] for name in names]
