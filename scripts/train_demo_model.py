"""Train the model of `lattice-bpd demo`: a small causal LM of Python code, its heads and n-gram LM.

    python scripts/train_demo_model.py                     # everything, 1 to 2 hours on two cores
    python scripts/train_demo_model.py --work DIR --out DIR

The text is the running Python's standard library, split by file (`evaluate/corpus.py`). Stages:
a byte-level BPE; the target and eight draft heads, trained together; unlikelihood training, so
that greedy output does not loop; greedy continuations of training text; heads of the final target
and an n-gram LM, both trained on those continuations; weights tuned on held-out files. Each stage
keeps its result in --work, and a second run goes on with the first stage that has none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast
from unlikelihood import UnlikelihoodOptions, train_unlikelihood

from lattice_bpd import NGramLM
from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd.evaluate import DraftOptions, record
from lattice_bpd.evaluate.corpus import Corpus, draw_prompts, read_library_sources
from lattice_bpd.evaluate.demo_model import DemoSettings, encode
from lattice_bpd.evaluate.loops import loop_share
from lattice_bpd.evaluate.settings import TREE_SETTINGS
from lattice_bpd.models import BlockwiseHeads, BlockwiseLM, build_small_gpt
from lattice_bpd.train.frozen import FrozenOptions, train_frozen
from lattice_bpd.train.heads import TrainOptions, TrainReport, train_blockwise
from lattice_bpd.train.own_text import write_own_text
from lattice_bpd.train.prune import count_prunable, prune_ngram
from lattice_bpd.train.tokenizer import END_OF_TEXT, train_byte_bpe

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {setting.name: setting for setting in TREE_SETTINGS}
MOST_BYTES = 8 << 20
"""The committed folder is not larger than this."""


@dataclass(frozen=True)
class Recipe:
    """Every number of the training.

    Attributes:
        vocab_size: V of the BPE.
        hidden_size: D.
        num_layers: transformer layers.
        num_attention_heads: attention heads of a layer.
        num_heads: prediction heads, the target's own included.
        inner_size: width of a draft head's hidden layer.
        max_positions: longest prompt plus output.
        pretrain: joint training of target and heads.
        unlikelihood: rounds of training against loops.
        prompt_length: tokens of prompts, here and in the demo.
        max_new_tokens: tokens of their continuations, here and in the demo.
        continuations: greedy continuations that heads and n-gram LM learn from.
        heads: training of the final heads.
        order: n of the n-gram LM.
        smoothing: of the n-gram LM.
        lm_bytes: the n-gram LM is pruned to about this size.
        tune_prompts: held-out prompts that alpha and temperature are tuned on.
        test_prompts: held-out prompts that loops are counted on.
        alphas: weights of the LM that are tried.
        temperatures: of trees that are tried.
        top_k: candidates of a slot.
        num_drafts: drafts of a list.
        max_nodes: nodes of a tree.
        seed: of weights, batches and prompts.
    """

    vocab_size: int = 384
    hidden_size: int = 96
    num_layers: int = 12
    num_attention_heads: int = 2
    num_heads: int = 9
    inner_size: int = 256
    max_positions: int = 256
    pretrain: TrainOptions = field(
        default_factory=lambda: TrainOptions(
            steps=6000, batch_size=16, sequence_length=256, matrix_lr=0.02, other_lr=0.02,
            warmup=100, head_weights=(1.0, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.2),
            head_fraction=0.125, precision="auto",
        )
    )  # fmt: skip
    unlikelihood: tuple[UnlikelihoodOptions, ...] = (
        UnlikelihoodOptions(
            steps=150,
            prompt_length=112,
            max_new_tokens=96,
            window=8,
            weight=1.0,
            matrix_lr=0.004,
            other_lr=0.002,
        ),
        UnlikelihoodOptions(
            steps=80,
            prompt_length=112,
            max_new_tokens=96,
            window=7,
            weight=2.0,
            matrix_lr=0.006,
            other_lr=0.003,
            seed=1,
        ),
    )
    prompt_length: int = 160
    max_new_tokens: int = 96
    continuations: int = 12288
    heads: FrozenOptions = field(default_factory=lambda: FrozenOptions(steps=2000))
    order: int = 4
    smoothing: str = "modified_kneser_ney"
    lm_bytes: int = 4_000_000
    tune_prompts: int = 64
    test_prompts: int = 200
    alphas: tuple[float, ...] = (0.25, 0.4, 0.6, 0.8, 1.0, 1.2)
    temperatures: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5)
    top_k: int = 16
    num_drafts: int = 16
    max_nodes: int = 36
    seed: int = 0


class Training:
    """The stages, each kept in a folder.

    Args:
        work: folder of the stages' results.
        recipe: every number.
        corpus: text, split by file.
        watcher: is notified of progress.
    """

    def __init__(self, work: Path, recipe: Recipe, corpus: Corpus, watcher: ConsoleWatcher) -> None:
        self.work, self.recipe, self.corpus, self.watcher = work, recipe, corpus, watcher
        self.facts_file = work / "facts.json"
        self.facts: dict[str, Any] = {}
        if self.facts_file.is_file():
            self.facts = json.loads(self.facts_file.read_text(encoding="utf-8"))

    def note(self, stage: str, start: float, **facts: object) -> None:
        """Keep facts of a stage, and its seconds."""
        self.facts[stage] = {"seconds": round(time.perf_counter() - start, 1), **facts}
        temporary = self.work / ".facts.json"
        temporary.write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.facts_file)

    def tokenizer(self) -> Tokenizer:
        """The byte-level BPE."""
        path = self.work / "tokenizer.json"
        if not path.is_file():
            start = time.perf_counter()
            self.watcher.begin("byte-level BPE")
            train_byte_bpe(self.corpus.train, self.recipe.vocab_size).save(str(path))
            self.watcher.end()
            self.note("tokenizer", start)
        return Tokenizer.from_file(str(path))

    def end_of_text(self) -> int:
        """The token id that ends a document."""
        return cast(int, self.tokenizer().token_to_id(END_OF_TEXT))

    def text(self) -> npt.NDArray[np.int32]:
        """(N,) int32, the training files with END_OF_TEXT after each."""
        path = self.work / "text.npy"
        if not path.is_file():
            start = time.perf_counter()
            tokenizer = self.tokenizer()
            end = np.int32(self.end_of_text())
            self.watcher.begin("encoding the training files")
            documents = encode(tokenizer, self.corpus.train)
            self.watcher.end()
            text = np.concatenate([np.append(ids, end) for ids in documents])
            _save_array(path, text)
            self.note("text", start, tokens=len(text), files=len(documents))
        return np.asarray(np.load(path), dtype=np.int32)

    def _model(
        self, name: str, previous: str, train: Callable[[BlockwiseLM], dict[str, object]]
    ) -> BlockwiseLM:
        """The model of a stage: read, or trained from the previous stage's."""
        if not (self.work / name / "blockwise_heads.json").is_file():
            start = time.perf_counter()
            model = self._new_model() if not previous else _load(self.work / previous)
            facts = train(model)
            model.save_pretrained(self.work / name)
            self.note(name, start, **facts)
        return _load(self.work / name)

    def _new_model(self) -> BlockwiseLM:
        recipe = self.recipe
        torch.manual_seed(recipe.seed)
        return build_small_gpt(
            recipe.vocab_size, hidden_size=recipe.hidden_size, num_layers=recipe.num_layers,
            num_attention_heads=recipe.num_attention_heads, num_heads=recipe.num_heads,
            max_positions=recipe.max_positions,
        )  # fmt: skip

    def pretrained(self) -> BlockwiseLM:
        """Target and heads after joint training."""
        text = self.text()

        def train(model: BlockwiseLM) -> dict[str, object]:
            def on_step(report: TrainReport) -> None:
                note = f"loss of head 1 {report.losses[0]:.2f}, head 2 {report.losses[1]:.2f}"
                self.watcher.advance(report.steps, note)

            self.watcher.begin("training target and heads", self.recipe.pretrain.steps)
            report = train_blockwise(model, text, self.recipe.pretrain, on_step)
            self.watcher.end()
            return {
                "steps": report.steps,
                "precision": report.precision,
                "losses": report.losses,
            }

        return self._model("pretrained", "", train)

    def target(self) -> BlockwiseLM:
        """The final target, rounded to bfloat16."""
        text = self.text()
        self.pretrained()

        def train(model: BlockwiseLM) -> dict[str, object]:
            losses: list[float] = []
            shares: list[float] = []

            def on_step(loss: float, share: float) -> None:
                losses.append(loss)
                shares.append(share)
                self.watcher.advance(note=f"loss {loss:.2f}, repeated windows {share:.1%}")

            rounds = self.recipe.unlikelihood
            self.watcher.begin("unlikelihood training", sum(options.steps for options in rounds))
            for options in rounds:
                train_unlikelihood(model, text, options, on_step)
            self.watcher.end()
            cast(nn.Module, model.base).to(torch.bfloat16).to(torch.float32)
            return {"losses": _thin(losses), "repeated_windows": _thin(shares)}

        return self._model("target", "pretrained", train)

    def continuations(self) -> npt.NDArray[np.int32]:
        """(N, P + m) int32, greedy continuations of training text by the final target."""
        path = self.work / "continuations.npy"
        if not path.is_file():
            model, text, recipe = self.target(), self.text(), self.recipe
            start = time.perf_counter()
            draws = np.random.default_rng(recipe.seed + 1)
            starts = draws.integers(len(text) - recipe.prompt_length, size=recipe.continuations)
            prompts = text[starts[:, None] + np.arange(recipe.prompt_length)]
            self.watcher.begin("continuing training text", -(-len(prompts) // 256))
            rows = write_own_text(
                model.base, prompts, recipe.max_new_tokens, on_batch=self.watcher.advance
            )
            self.watcher.end()
            _save_array(path, rows)
            self.note("continuations", start, rows=len(rows))
        return np.asarray(np.load(path), dtype=np.int32)

    def model(self) -> BlockwiseLM:
        """The final target with heads trained on its own continuations."""
        rows = self.continuations()
        recipe = self.recipe

        def train(model: BlockwiseLM) -> dict[str, object]:
            torch.manual_seed(recipe.seed)
            model.heads = BlockwiseHeads(
                recipe.hidden_size, recipe.num_heads, recipe.inner_size,
                vocab_size=recipe.vocab_size,
            )  # fmt: skip
            self.watcher.begin("training heads, target frozen", recipe.heads.steps)
            report = train_frozen(
                model, rows, replace(recipe.heads, first_position=recipe.prompt_length - 1),
                lambda report: self.watcher.advance(note=f"head 2 {report.losses[0]:.2f}"),
            )  # fmt: skip
            self.watcher.end()
            model.heads.to(torch.bfloat16).to(torch.float32)
            return {"steps": report.steps, "losses": report.losses}

        return self._model("final", "target", train)

    def lm(self) -> NGramLM:
        """The n-gram LM of the target's continuations."""
        path = self.work / "ngram.lm"
        if not path.is_file():
            recipe, rows = self.recipe, self.continuations()
            start = time.perf_counter()
            self.watcher.begin("training the n-gram LM")
            own = rows[:, recipe.prompt_length - recipe.order + 1 :]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # 1,024 tokens leave few unseen bigrams
                lm = NGramLM.train(
                    list(own), recipe.order, vocab_size=recipe.vocab_size,
                    smoothing=recipe.smoothing,
                )  # fmt: skip
            trained = sum(lm.num_ngrams)
            size = _saved_bytes(lm, path.with_name(".ngram.lm"))
            if size > recipe.lm_bytes:
                lm = prune_ngram(lm, prune_to=count_prunable(lm) * recipe.lm_bytes // size)
            size = _saved_bytes(lm, path.with_name(".ngram.lm"))
            path.with_name(".ngram.lm").replace(path)
            self.watcher.end()
            self.note("ngram", start, ngrams=sum(lm.num_ngrams), unpruned=trained, bytes=size)
        return NGramLM.load(path)

    def prompts(self, texts: list[str], count: int) -> tuple[list[list[int]], list[list[int]]]:
        """Prompts from held-out files, and how the files continue them."""
        recipe = self.recipe
        documents = encode(self.tokenizer(), texts)
        length = recipe.prompt_length + recipe.max_new_tokens
        rows = draw_prompts(documents, count, length, 0, recipe.seed)
        cut = recipe.prompt_length
        return [row[:cut] for row in rows], [row[cut:] for row in rows]

    def loops(self) -> dict[str, float]:
        """Shares of looping positions of held-out text and of the target's greedy output."""
        prompts, human = self.prompts(self.corpus.test, self.recipe.test_prompts)
        rows = write_own_text(self.target().base, prompts, self.recipe.max_new_tokens)
        end = self.end_of_text()
        outputs = [_until(row[self.recipe.prompt_length :].tolist(), end) for row in rows]
        return {"model": loop_share(prompts, outputs), "human": loop_share(prompts, human)}

    def tuned(self) -> tuple[dict[str, DraftOptions], dict[str, float]]:
        """The best weight and temperature of each setting on the tuning prompts, by replay."""
        recipe, model, lm = self.recipe, self.model(), self.lm()
        prompts, _ = self.prompts(self.corpus.tune, recipe.tune_prompts)
        rows = write_own_text(model.base, prompts, recipe.max_new_tokens)
        outputs = [row[recipe.prompt_length :].tolist() for row in rows]
        replay = record(model, prompts, outputs, top_k=recipe.top_k)
        grids = {
            "bpd": [(0.0, 1.0)],
            "p_best_0gram": [(0.0, 1.0)],
            "p_best_ngram": [(alpha, 1.0) for alpha in recipe.alphas],
            "tree_0gram": [(0.0, temperature) for temperature in recipe.temperatures],
            "tree": list(itertools.product(recipe.alphas, recipe.temperatures)),
        }
        best: dict[str, DraftOptions] = {}
        efficiency: dict[str, float] = {}
        self.watcher.begin("tuning alpha and temperature", len(grids))
        for name, grid in grids.items():
            tried = {
                (options := DraftOptions(
                    recipe.top_k, recipe.num_drafts, recipe.max_nodes, *point
                )): replay.block_efficiency(SETTINGS[name], lm, options)
                for point in grid
            }  # fmt: skip
            best[name] = max(tried, key=lambda options: tried[options])
            efficiency[name] = tried[best[name]]
            self.watcher.advance(note=f"{name} {efficiency[name]:.2f}")
        self.watcher.end()
        return best, efficiency


def _load(directory: Path) -> BlockwiseLM:
    return BlockwiseLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")


def _save_array(path: Path, array: npt.NDArray[np.int32]) -> None:
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(path)


def _saved_bytes(lm: NGramLM, path: Path) -> int:
    lm.save(path)
    return path.stat().st_size


def _until(tokens: list[int], end: int) -> list[int]:
    """Tokens up to and with the first `end`."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def _thin(values: list[float], count: int = 20) -> list[float]:
    """About `count` of the values, evenly spread, the last among them."""
    step = max(1, len(values) // count)
    return [round(value, 4) for value in values[::-step][::-1]]


def main() -> None:
    """Train what is missing and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "demo-model", metavar="DIR",
        help="results of the stages (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=ROOT / "examples" / "demo_model", metavar="DIR",
        help="the finished model (default: %(default)s)",
    )  # fmt: skip
    args = parser.parse_args()
    quiet_transformers()
    torch.set_num_threads(min(torch.get_num_threads(), 4))
    args.work.mkdir(parents=True, exist_ok=True)
    training = Training(
        args.work, Recipe(), read_library_sources(), ConsoleWatcher(make_console(), {})
    )
    write_model(training, args.out)


def write_model(training: Training, out: Path) -> None:
    """Write the finished model's folder, or leave what is there.

    Raises:
        ValueError: the folder would be larger than MOST_BYTES.
    """
    recipe, loops = training.recipe, training.loops()
    options, efficiency = training.tuned()
    model, lm = training.model(), training.lm()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".demo-model-") as name:
        folder = Path(name) / out.name
        model.to(torch.bfloat16).save_pretrained(folder)
        PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_file=str(training.work / "tokenizer.json"), eos_token=END_OF_TEXT
        ).save_pretrained(folder)
        shutil.copy(training.work / "ngram.lm", folder)
        tuned = {name: options[name].alpha for name in ("p_best_ngram", "tree")}
        settings = DemoSettings(
            prompt_length=recipe.prompt_length,
            max_new_tokens=recipe.max_new_tokens,
            top_k=recipe.top_k,
            num_drafts=recipe.num_drafts,
            max_nodes=recipe.max_nodes,
            order=lm.order,
            seed=recipe.seed,
            alpha=tuned,
            temperature={name: options[name].temperature for name in ("tree_0gram", "tree")},
            end_of_text=training.end_of_text(),
            training={
                "recipe": asdict(recipe),
                "stages": training.facts,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "tuning_block_efficiency": efficiency,
            },
            loops=loops,
        )
        settings.save(folder)
        (folder / "README.md").write_text(model_card(training, settings), encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.iterdir())
        if size > MOST_BYTES:
            raise ValueError(
                f"the model takes {size:,} bytes; expected at most {MOST_BYTES:,}; lower lm_bytes"
            )
        if out.exists():
            out.rename(Path(name) / "previous")
        for path in folder.iterdir():
            path.chmod(0o644)
        folder.rename(out)
    watcher = training.watcher
    watcher.console.print(f"{out}: {size / 1e6:.2f} MB; loops {loops}; {efficiency}")


def model_card(training: Training, settings: DemoSettings) -> str:
    """README.md of the folder."""
    model, lm, recipe = training.model(), training.lm(), training.recipe
    parameters = sum(weight.numel() for weight in model.base.parameters())
    heads = sum(weight.numel() for weight in cast(BlockwiseHeads, model.heads).parameters())
    minutes = sum(facts["seconds"] for facts in training.facts.values()) / 60
    text, loops, version = training.facts["text"], settings.loops, settings.training["python"]
    return f"""# The demo's model

A causal LM of Python code for `lattice-bpd demo`: small enough for a repository, good enough to
show what rescored drafts gain. It is of no other use.

- **Target**: GPT-NeoX, {recipe.num_layers} layers, D = {recipe.hidden_size},
  V = {model.vocab_size}, {parameters:,} parameters, bfloat16.
- **Heads**: {model.num_slots} draft heads with an inner size of {recipe.inner_size},
  {heads:,} parameters, trained on greedy continuations by the frozen target.
- **n-gram LM**: order {lm.order}, {sum(lm.num_ngrams):,} n-grams ({recipe.smoothing}) of
  {recipe.continuations:,} greedy continuations by the target.
- **Text**: the standard library of Python {version} without its tests, {text["tokens"]:,} tokens of
  {text["files"]} files, under the PSF license. A sixteenth of the files is held out for prompts,
  another for tuning; the split is by a hash of the file's name, so the same modules are held out
  in every version of Python.
- **Training**: `python scripts/train_demo_model.py`, {minutes:.0f} minutes on two cores that other
  programs shared. `demo.json` has the recipe, and losses and seconds of each stage.
- **Loops**: {loops["model"]:.1%} of the tokens of its greedy continuations of
  {recipe.test_prompts} held-out prompts end a window of 8 tokens that occurred before;
  {loops["human"]:.1%} in the files themselves.
"""


if __name__ == "__main__":
    main()
