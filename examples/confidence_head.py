"""Is a confidence head worth verifying fewer draft tokens for?

    python examples/confidence_head.py --quick
    python examples/confidence_head.py --quick --json results.json

DSpark drafts a greedy walk over its Markov head, and its confidence head estimates for each slot
the probability that the token is accepted if those before it are. This example trains both on the
frozen block drafter of block_drafter.py, and compares ways to verify fewer draft tokens:

fixed        the first L slots of the walk, or the N most probable prefixes as a tree
probability  the prefixes whose probability by the drafter's own rows is above a threshold
confidence   the slots whose product of confidences is above a threshold; of a tree: the prefixes
             whose probability, with the walk's own probability in each slot replaced by the
             confidence, is above a threshold
depth        (trees) N prefixes within the slots whose product of confidences is above a threshold

Thresholds give the same draft tokens per call as `fixed`; that of `depth` is chosen on other
beginnings. The lattices are those that live decoding of held-out beginnings reads, along greedy's
output, so the calls are counted as decoding would need them; whole walks are decoded live to
confirm that.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from block_parts import (
    FULL_BLOCK,
    QUICK_BLOCK,
    QUICK_STORIES,
    BlockRecipe,
    cached_drafter,
    write_results,
)
from confidence_parts import (
    TOP_K,
    Texts,
    best_depth,
    calibration,
    chain_counts,
    counts_of,
    fixed_counts,
    read_texts,
    threshold_for,
)
from stories260k import read_arguments
from stories260k_parts import BEGIN, FULL, Prepared, Recipe, prepare
from torch.nn import functional as F
from transition_parts import WalkDrafter

from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.evaluate.statistics.bootstrap import bootstrap_block_efficiency, compare_paired
from lattice_bpd.models import BlockDrafter
from lattice_bpd.models.block_drafter.markov import ConfidenceHead, MarkovHead
from lattice_bpd.models.block_drafter.scorer_config import MarkovConfig
from lattice_bpd.train.block_drafter.options import BlockTrainOptions
from lattice_bpd.train.heads.optimizers import set_rates
from lattice_bpd.train.selector.options import SelectorOptions
from lattice_bpd.train.selector.trainer import SelectorTrainer, cross_entropies, weighted_mean

MARKOV = MarkovConfig(rank=64, has_confidence=True, confidence_reads_token=True, top_k=TOP_K)
QUICK_DRAFTER = replace(QUICK_BLOCK, training=BlockTrainOptions(steps=600))
QUICK_HEADS = SelectorOptions(steps=300, learning_rate=0.005, anchors=32)
FULL_HEADS = SelectorOptions(steps=1500, learning_rate=0.003)
CHAINS, TREES = (1, 2, 3, 4, 5, 6, 7), (4, 8, 12, 18, 24, 36)


def train_heads(
    drafter: BlockDrafter, made: Prepared, options: SelectorOptions, watcher: ConsoleWatcher
) -> BlockDrafter:
    """A copy of the drafter with a Markov head and a confidence head, trained on the same text.

    As DSpark's are, with the previous tokens of the text; but the confidence head learns whether
    the row's best candidate is the text's token, which is what greedy verification accepts.
    """
    copied, config = copy.deepcopy(drafter), drafter.config
    copied.config = replace(config, scorer=MARKOV)
    torch.manual_seed(options.seed)
    vocab_size = config.vocab_size or 0
    copied.markov_head = MarkovHead(MARKOV, vocab_size, vocab_size, config.hidden_size)
    torch.nn.init.normal_(copied.markov_head.markov_w1.weight, std=0.1)
    torch.nn.init.zeros_(copied.markov_head.markov_w2.weight)  # begins as the drafter alone
    copied.confidence_head = ConfidenceHead(MARKOV, config.hidden_size)
    copied.attach(made.base)
    markov, confidence = copied.markov_head, copied.confidence_head
    source = SelectorTrainer(made.base, drafter, list(made.rows), options)  # texts and candidates
    weights = [*markov.parameters(), *confidence.parameters()]
    optimizer = torch.optim.AdamW(weights, options.learning_rate, weight_decay=0.0)
    optimizer.param_groups[0]["peak_lr"] = options.learning_rate
    decay = torch.exp(-torch.arange(drafter.num_slots) / 4.0)
    watcher.begin("training Markov head and confidence head", options.steps)
    for step in range(options.steps):
        generator = torch.Generator().manual_seed(step)
        pieces = source.pieces
        which = torch.randint(len(pieces.training), (options.batch_size,), generator=generator)
        slots, previous, labels = source.read(
            pieces.sample(which.tolist(), drafter.num_slots, generator, held_out=False)
        )
        pairs = markov.pair_scores(previous.unsqueeze(-1), slots.states, slots.draft_ids)
        rows = pairs.squeeze(-2) + slots.logits
        nats, covered = cross_entropies(rows, slots, labels)
        best = slots.token_ids.gather(2, rows.argmax(dim=-1, keepdim=True)).squeeze(2)
        estimates = confidence(slots.states, markov.markov_w1(previous))
        missed = F.binary_cross_entropy(estimates, (best == labels).float(), reduction="none")
        loss = weighted_mean(nats, decay * covered) + weighted_mean(missed, decay * (labels >= 0))
        set_rates([optimizer], step, options.steps, options.warmup)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.advance(note=f"loss {float(loss.detach()):.3f}")
    watcher.end()
    return copied.eval()


def compare(tune: Texts, test: Texts) -> list[dict[str, Any]]:
    """Tokens per call of all ways, each at the draft tokens per call of a fixed size."""
    lines = []
    for kind, sizes in (("chain", CHAINS), ("tree", TREES)):
        for size in sizes:
            counts = {"fixed": fixed_counts(test, kind, size)}
            wanted = counts["fixed"][2].sum() / counts["fixed"][1].sum()
            for way in ("probability", "confidence"):
                name = f"{kind}/{way}"
                counts[way] = counts_of(test, name, threshold_for(test, name, wanted))
            if kind == "tree":
                best = best_depth(tune, size)
                counts["depth"] = counts_of(test, "tree/depth", best, size)
            lines += [line_of(kind, size, way, counts) for way in counts]
    return lines


def line_of(kind: str, size: int, way: str, counts: dict[str, Any]) -> dict[str, Any]:
    """Figures of a way, and its paired gains over the others."""
    tokens, calls, drafted = counts[way]
    line = {
        "name": f"{kind}/{way}/{size}",
        "verified_per_call": drafted.sum() / calls.sum(),
        "tokens_per_call": bootstrap_block_efficiency(tokens, calls).to_json(),
    }
    for other in ("fixed", "probability"):
        if way != other:
            gain = compare_paired(tokens, calls, counts[other][1]).gain
            line[f"gain_over_{other}"] = gain.to_json()
    return line


def check_live(drafter: BlockDrafter, made: Prepared, texts: Texts, prompts: Any, new: int) -> None:
    """Raise ValueError unless live decoding of the whole walk needs the calls that were counted."""
    model, config = DraftingModel(made.base, drafter), DraftConfig(top_k=TOP_K)
    counted = chain_counts(texts, np.full(len(texts.text), drafter.num_slots))[1]
    for number, prompt in enumerate(prompts[:8]):
        options = {"max_new_tokens": new, "stop_token_ids": [BEGIN]}
        walked = decode(model, prompt, WalkDrafter(None, config), **options)
        plain = made.base.generate(
            torch.tensor([prompt]), max_new_tokens=new, do_sample=False, eos_token_id=BEGIN
        )
        if walked.token_ids != plain[0, len(prompt) :].tolist():
            raise ValueError(f"prompt {number}: output differs from greedy decoding")
        if walked.stats.target_calls != counted[number]:
            raise ValueError(
                f"prompt {number}: {walked.stats.target_calls} calls live, {counted[number]:.0f} "
                "counted"
            )


def main(
    arguments: Sequence[str] | None = None, recipe: Recipe | None = None,
    block: BlockRecipe | None = None, heads: SelectorOptions | None = None,
) -> None:  # fmt: skip
    """Train or load, record, compare, print."""
    args = read_arguments(arguments, __doc__)
    torch.set_num_threads(1)
    console = make_console()
    watcher = ConsoleWatcher(console, {})
    recipe = recipe or (QUICK_STORIES if args.quick else FULL)
    block = block or (QUICK_DRAFTER if args.quick else FULL_BLOCK)
    heads = heads or (QUICK_HEADS if args.quick else FULL_HEADS)
    made = prepare(args, recipe, "block-quick" if args.quick else "full", watcher)
    drafter = train_heads(cached_drafter(made, block, watcher), made, heads, watcher)
    tune = read_texts(drafter, made, made.found.tune, recipe.max_new_tokens)
    test = read_texts(drafter, made, made.found.test, recipe.max_new_tokens)
    check_live(drafter, made, test, made.found.test, recipe.max_new_tokens)
    lines, estimates = compare(tune, test), calibration(test)
    console.print(
        f"{'':24}{'verified':>9}{'tokens per call':>18}  gain over probability", markup=False
    )
    for line in lines:
        value, gain = line["tokens_per_call"], line.get("gain_over_probability")
        text = (
            ""
            if gain is None
            else f"{gain['value']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%})"
        )
        console.print(
            f"{line['name']:24}{line['verified_per_call']:9.2f}{value['value']:18.3f}  {text}",
            markup=False,
        )
    console.print(str(estimates), markup=False)
    if args.json is not None:
        write_results(args.json, {"strategies": lines, "calibration": estimates})


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"confidence_head: {error}")
