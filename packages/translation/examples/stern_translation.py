"""Blockwise parallel decoding as in Stern et al. 2018: five ways to train heads, by block size k.

    python examples/stern_translation.py [--quick] [--block-sizes K ...] [--ways WAY ...]
        [--teacher-seed N] [--json FILE]

On Multi30k, German to English: trains a small target, then for each k heads that predict k tokens,
head 1 being the target's own:

regular             heads alone, on the references          (Stern et al. 2018, section 6.1)
distillation        heads alone, on a teacher's beam search with 4 beams           (section 6.2)
finetuning          target and heads together, on the references
both                target and heads together, on the beam search's outputs
joint               target and heads together from random weights, on the references

The teacher is the target itself or, with --teacher-seed, a model of the same sizes and steps from
another seed, as in the paper. The example prints BLEU and block efficiency of each, with the
decoder calls of two decoding loops on the same drafts: merged, where a verifying call also gives
the next predictions, and unmerged, where predictions take a call of their own (section 4).
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from specdec_translation import DATA, bleu
from specdec_translation_parts import (
    QUICK,
    Recipe,
    Sentences,
    build_target,
    load_sentences,
    to_text,
)

from lattice_bpd import atomic_files
from lattice_bpd.cli.progress import make_console, quiet_transformers
from lattice_bpd.decode import generate
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_translation.joint import (
    Seq2SeqOptions,
    read_pairs,
    train_seq2seq,
    train_seq2seq_heads,
    train_seq2seq_jointly,
)
from lattice_bpd_translation.target import Seq2SeqTarget
from lattice_bpd_translation.text import Pair, collate, generate_outputs

WAYS = ("regular", "distillation", "finetuning", "both", "joint")


@dataclass(frozen=True)
class Steps:
    """Sizes of a run.

    Attributes:
        block_sizes: k, head 1 included.
        heads: steps of heads alone.
        finetuning: steps of target and heads together.
        distilled: sentences that the teacher translates.
        base_rate: of the target's weights in finetuning, relative to the heads'.
        ways: of training.
    """

    block_sizes: tuple[int, ...] = (2, 4)
    heads: int = 150
    finetuning: int = 150
    distilled: int = 6000
    base_rate: float = 0.05
    ways: tuple[str, ...] = WAYS


FULL = Steps((2, 4, 6, 8), heads=600, finetuning=600, distilled=22000)


def main(
    arguments: Sequence[str] | None = None, recipe: Recipe = QUICK, steps: Steps | None = None
) -> list[dict[str, Any]]:
    """Train, translate, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and sizes, 12 minutes")
    parser.add_argument(
        "--block-sizes", type=int, nargs="+", metavar="K",
        help="tokens that heads predict, head 1 included (default: 2 4 6 8; quick: 2 4)",
    )  # fmt: skip
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, metavar="WAY", help="of training (default: all)"
    )
    parser.add_argument(
        "--teacher-seed", type=int, metavar="N",
        help="seed of a teacher whose beam search is learned (default: the target teaches)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results there, too")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", default=DATA,
        help="folder with Multi30k's train, val and test_2016_flickr (default: %(default)s)",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    if not (args.data / "train.de.gz").is_file():
        parser.error(f"{args.data} has no train.de.gz; give the folder of Multi30k by --data DIR")
    steps = steps or (Steps() if args.quick else FULL)
    steps = replace(
        steps, block_sizes=tuple(args.block_sizes or steps.block_sizes),
        ways=tuple(args.ways or steps.ways),
    )  # fmt: skip
    if min(steps.block_sizes) < 2:
        parser.error(f"--block-sizes {min(steps.block_sizes)}: expected 2 or more")
    if not args.quick:
        recipe = replace(recipe, target_steps=4 * recipe.target_steps, test_sentences=300)
    torch.set_num_threads(1)  # matrices this small only lose by being shared out
    quiet_transformers()
    start, console = time.perf_counter(), make_console()
    tokenizer, sentences = load_sentences(args.data, recipe)
    target = build_target(recipe)
    train_seq2seq(target, sentences.train, target_options(recipe))
    console.print(f"target trained: {time.perf_counter() - start:.0f} s")
    teacher = target
    if args.teacher_seed is not None:
        teacher = build_target(recipe, args.teacher_seed)
        options = replace(target_options(recipe), seed=args.teacher_seed)
        train_seq2seq(teacher, sentences.train, options)
        console.print(f"teacher trained: {time.perf_counter() - start:.0f} s")
    sources = [pair.source for pair in sentences.train[: steps.distilled]]
    outputs = generate_outputs(teacher, sources, recipe.max_new_tokens, num_beams=4)
    distilled = [Pair(*pair) for pair in zip(sources, outputs, strict=True)]
    console.print(f"distilled: {time.perf_counter() - start:.0f} s")
    rows = [measure("target", 1, target, None, sentences, tokenizer, recipe)]
    for k in steps.block_sizes:
        for way in steps.ways:
            made = train_way(way, k, target, sentences.train, distilled, recipe, steps)
            rows.append(measure(way, k, *made, sentences, tokenizer, recipe))
            console.print(f"k = {k}, {way}: {time.perf_counter() - start:.0f} s")
    console.print(render(rows, len(sentences.test[0])))
    if args.json is not None:
        seconds = time.perf_counter() - start
        atomic_files.write_json(args.json, {"rows": rows, "seconds": seconds})
    return rows


def target_options(recipe: Recipe) -> Seq2SeqOptions:
    """Options of training from random weights."""
    return Seq2SeqOptions(
        steps=recipe.target_steps, batch_size=recipe.target_batch,
        label_smoothing=recipe.label_smoothing,
    )  # fmt: skip


def train_way(
    way: str,
    k: int,
    target: Seq2SeqTarget,
    references: list[Pair],
    distilled: list[Pair],
    recipe: Recipe,
    steps: Steps,
) -> tuple[Seq2SeqTarget, BlockwiseHeads]:
    """A target with heads for blocks of k tokens; the given target is unchanged."""
    torch.manual_seed(k)
    size = recipe.hidden_size
    heads = BlockwiseHeads(size, k, 2 * size, vocab_size=recipe.vocab_size)
    pairs = distilled if way in ("distillation", "both") else references
    if way == "joint":
        fresh = build_target(recipe)
        train_seq2seq_jointly(fresh, heads, pairs, target_options(recipe))
        return fresh, heads
    options = Seq2SeqOptions(steps=steps.heads, batch_size=recipe.drafter_batch)
    train_seq2seq_heads(target, heads, pairs, options)
    if way in ("regular", "distillation"):
        return target, heads
    tuned = Seq2SeqTarget(copy.deepcopy(target.base))
    options = replace(options, steps=steps.finetuning, base_rate=steps.base_rate)
    train_seq2seq_jointly(tuned, heads, pairs, options)
    return tuned, heads


def measure(
    way: str,
    k: int,
    target: Seq2SeqTarget,
    heads: BlockwiseHeads | None,
    sentences: Sentences,
    tokenizer: Any,
    recipe: Recipe,
) -> dict[str, Any]:
    """BLEU, and calls of the decoder with merged and unmerged verification."""
    sources, references = sentences.test
    outputs, merged, unmerged = [], 0, 0

    def draft(hidden: torch.Tensor) -> torch.Tensor:
        """(N, k-1, V) logits of the draft heads."""
        assert heads is not None
        logits: torch.Tensor = target.embedding(heads(hidden))
        return logits

    for source in sources:
        strategy = "greedy" if heads is None else "bpd"
        result = generate(
            target, source, strategy, heads=heads, max_new_tokens=recipe.max_new_tokens
        )
        outputs.append(result.token_ids)
        merged += result.stats.target_calls
        if heads is not None:
            tokens, calls = decode_unmerged(target, draft, source, recipe.max_new_tokens)
            if tokens != result.token_ids:
                raise ValueError(f"unmerged decoding gave {tokens}, merged {result.token_ids}")
            unmerged += calls
    tokens = sum(map(len, outputs))
    return {
        "way": way,
        "k": k,
        "bleu": bleu([to_text(tokenizer, output) for output in outputs], references),
        "tokens": tokens,
        "merged_calls": merged,
        "unmerged_calls": unmerged if heads is not None else None,
        "block_efficiency": tokens / merged,
    }


@torch.inference_mode()
def decode_unmerged(
    target: Seq2SeqTarget,
    draft: Callable[[torch.Tensor], torch.Tensor],
    source: Sequence[int],
    max_new_tokens: int,
) -> tuple[list[int], int]:
    """Blockwise parallel decoding with a call to predict and a call to verify each block.

    The loop of Stern et al. 2018, section 3, without a KV cache: with perfect heads it takes 2m/k
    calls for m tokens, where the merged loop takes m/k + 1.

    Args:
        target: the model with its decoder prompt and stop tokens.
        draft: draft heads, from hidden states (N, D) to logits (N, k-1, V).
        source: token ids.
        max_new_tokens: longest output.

    Returns:
        The output, the target's greedy one, and the decoder's calls.
    """
    output: list[int] = []
    calls = 0

    def read(tokens: list[int]) -> Any:
        """One call of the decoder on a whole prefix: logits (T, V) and hidden states (T, D)."""
        nonlocal calls
        calls += 1
        batch = collate([Pair(source, [*tokens, 0])], target.decoder_prompt)
        found = read_pairs(target, batch)[0]
        return found.logits[0], found.hidden[0]

    while len(output) < max_new_tokens:
        logits, hidden = read(output)  # predict
        block = [int(logits[-1].argmax())]
        block += draft(hidden[-1:])[0].argmax(dim=-1).tolist()
        block = block[: max_new_tokens - len(output)]
        if block[0] in target.stop_token_ids or len(block) == 1:
            output.append(block[0])  # head 1's token is exact: nothing to verify
        else:
            logits, _ = read([*output, *block[:-1]])  # verify
            exact = logits[-len(block) :].argmax(dim=-1).tolist()
            for drafted, wanted in zip(block, exact, strict=True):
                if drafted != wanted:
                    break
                output.append(drafted)
                if drafted in target.stop_token_ids:
                    break
        if output[-1] in target.stop_token_ids:
            break
    return output, calls


def render(rows: list[dict[str, Any]], count: int) -> Table:
    """The table."""
    title = f"Multi30k German-English, {count} sentences of test 2016"
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(
        ("training", "k", "BLEU", "block eff.", "merged calls", "unmerged calls", "m/k + n", "2m/k")
    ):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        least = row["tokens"] / row["k"]
        unmerged = row["unmerged_calls"]
        table.add_row(
            row["way"], str(row["k"]), f"{row['bleu']:.2f}", f"{row['block_efficiency']:.2f}",
            f"{row['merged_calls']:,}", "" if unmerged is None else f"{unmerged:,}",
            f"{least + count:,.0f}" if unmerged else "", f"{2 * least:,.0f}" if unmerged else "",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"stern_translation: {error}")
