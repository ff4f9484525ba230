"""Train the model of `make demo`: a small causal LM of Python code, its heads and n-gram LM.

    python examples/demo/train_demo_model.py     # everything, 1 to 2 hours on two cores
    python examples/demo/train_demo_model.py --work DIR --out DIR

The text is the running Python's standard library, split by file
(`lattice_bpd_kim2024.demo.library_text`). Stages:
a byte-level BPE; the target and eight draft heads, trained together; unlikelihood training, so
that greedy output does not loop; greedy continuations of training text; heads of the final target
and an n-gram LM, both trained on those continuations; weights tuned on held-out files. Each stage
keeps its result in --work, and a second run continues with the first stage that has none.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import nn

from demo_model_folder import write_model
from lattice_bpd import NGramLM
from lattice_bpd.atomic_files import replacing, write_json
from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_conformance.cases import cut_at_end
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.demo.library_text import Corpus, draw_prompts, read_library_sources
from lattice_bpd_kim2024.demo.model_folder import encode
from lattice_bpd_kim2024.demo.recipe import DraftRecipe
from lattice_bpd_kim2024.demo.training import Tried, end_of_text, tune_drafts
from lattice_bpd_kim2024.evaluate import record
from lattice_bpd_kim2024.heads.frozen import FrozenOptions, train_frozen
from lattice_bpd_kim2024.heads.joint import TrainOptions, TrainReport, train_blockwise
from lattice_bpd_kim2024.heads.self_generated import generate_texts
from lattice_bpd_kim2024.small_models import build_small_gpt, train_byte_bpe
from lattice_bpd_kim2024.statistics import loop_share
from unlikelihood import UnlikelihoodOptions, train_unlikelihood

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Recipe(DraftRecipe):
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
        unlikelihood_share: of the weights after that training in the target; the others are those
            before it. Between the two lie models that loop little and still predict well (Wortsman
            et al. 2022, "Robust fine-tuning of zero-shot models").
        continuations: greedy continuations that heads and n-gram LM learn from.
        heads: training of the final heads.
        smoothing: of the n-gram LM.
        lm_bytes: the n-gram LM is pruned to about this size.
    """

    vocab_size: int = 384
    hidden_size: int = 96
    num_layers: int = 12
    num_attention_heads: int = 2
    num_heads: int = 9
    inner_size: int = 512
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
    unlikelihood_share: float = 0.9
    continuations: int = 12288
    heads: FrozenOptions = field(default_factory=lambda: FrozenOptions(steps=5000))
    smoothing: str = "modified_kneser_ney"
    lm_bytes: int = 4_000_000
    tune_prompts: int = 64
    test_prompts: int = 200
    alphas: tuple[float, ...] = (0.25, 0.4, 0.6, 0.8, 1.0, 1.2)
    temperatures: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5)


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
        write_json(self.facts_file, self.facts)

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

    def text(self) -> npt.NDArray[np.int32]:
        """(N,) int32, the training files with END_OF_TEXT after each."""
        path = self.work / "text.npy"
        if not path.is_file():
            start = time.perf_counter()
            tokenizer = self.tokenizer()
            end = np.int32(end_of_text(tokenizer))
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

            rounds, share = self.recipe.unlikelihood, self.recipe.unlikelihood_share
            base = cast(nn.Module, model.base)
            before = {name: weight.clone() for name, weight in base.state_dict().items()}
            self.watcher.begin("unlikelihood training", sum(options.steps for options in rounds))
            for options in rounds:
                train_unlikelihood(model, text, options, on_step)
            self.watcher.end()
            base.load_state_dict(
                {
                    name: torch.lerp(before[name], weight, share)
                    for name, weight in base.state_dict().items()
                }
            )
            base.to(torch.bfloat16).to(torch.float32)
            return {"losses": _thin(losses), "repeated_windows": _thin(shares)}

        return self._model("target", "pretrained", train)

    def continuations(self) -> npt.NDArray[np.int32]:
        """(N, P + m) int32, greedy continuations of training text by the final target."""
        path = self.work / "continuations.npy"
        if not path.is_file():
            model, text, recipe = self.target(), self.text(), self.recipe
            start = time.perf_counter()
            rng = np.random.default_rng(recipe.seed + 1)
            starts = rng.integers(len(text) - recipe.prompt_length, size=recipe.continuations)
            prompts = text[starts[:, None] + np.arange(recipe.prompt_length)]
            self.watcher.begin("continuing training text", -(-len(prompts) // 256))
            rows = generate_texts(
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
                lm = lm.prune(prune_to=lm.num_prunable * recipe.lm_bytes // size)
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
        rows = generate_texts(self.target().base, prompts, self.recipe.max_new_tokens)
        end = [end_of_text(self.tokenizer())]
        outputs = [cut_at_end(row[self.recipe.prompt_length :].tolist(), end) for row in rows]
        return {"model": loop_share(prompts, outputs), "human": loop_share(prompts, human)}

    def tune(self) -> Tried:
        """Block efficiency of the demo's settings on the tuning prompts, by replay."""
        recipe, model, lm = self.recipe, self.model(), self.lm()
        prompts, _ = self.prompts(self.corpus.tune, recipe.tune_prompts)
        rows = generate_texts(model.base, prompts, recipe.max_new_tokens)
        outputs = [row[recipe.prompt_length :].tolist() for row in rows]
        replay = record(model, prompts, outputs, top_k=recipe.top_k)
        self.watcher.begin("tuning alpha and temperature")
        tried = tune_drafts(replay, lm, recipe)
        self.watcher.end()
        return tried


def _load(directory: Path) -> BlockwiseLM:
    return BlockwiseLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")


def _save_array(path: Path, array: npt.NDArray[np.int32]) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def _saved_bytes(lm: NGramLM, path: Path) -> int:
    lm.save(path)
    return path.stat().st_size


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


if __name__ == "__main__":
    main()
