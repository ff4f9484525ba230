"""What `lattice-bpd drafter train` prints of its results."""

from __future__ import annotations

from lattice_bpd.train.block_drafter.run import BlockResult
from lattice_bpd.train.selector.run import SelectorResult


def describe_drafter(result: BlockResult) -> list[str]:
    """Losses and accuracies of a block drafter's slots, then the run."""
    lines = ["\nslot  training loss  accuracy"]
    for slot, loss in result.losses.items():
        accuracy = result.accuracies.get(slot)
        share = "-" if accuracy is None else f"{100 * accuracy:.1f} %"
        lines.append(f"{slot:>4}  {loss:>13.3f}  {share:>8}")
    if result.block_efficiency is not None:
        lines.append(
            f"{result.block_efficiency:.2f} tokens per call of the target on validation text, "
            "drafting the most likely tokens"
        )
    return [
        *lines,
        f"losses in nats per token\n{result.output}: {result.steps:,} steps in "
        f"{result.seconds:,.1f} s ({_status(result)}), {result.precision}, {result.tokens:,} "
        "training tokens",
    ]


def describe_selector(result: SelectorResult) -> list[str]:
    """Losses and accuracies of the slots with a selector, then the run."""
    scores = result.scores
    lines = ["\nslot  training loss  among candidates  accuracy before   after"]
    for slot, loss in result.losses.items():
        line = f"{slot:>4}  {loss:>13.3f}"
        if scores is not None:
            shares = (scores.coverage, scores.accuracy_before, scores.accuracy)
            among, before, after = (f"{100 * share[slot - 1]:.1f} %" for share in shares)
            line += f"  {among:>16}  {before:>15}  {after:>6}"
        lines.append(line)
    if scores is not None:
        lines.append(
            "accuracy after the text's own previous token; accepted draft tokens of a greedy walk "
            f"on validation text: {scores.accept_length_before:.2f} before, "
            f"{scores.accept_length:.2f} after, mean of {scores.blocks:,} blocks"
        )
    return [
        *lines,
        f"losses in nats per token\n{result.output}: {result.steps:,} steps in "
        f"{result.seconds:,.1f} s ({_status(result)}), {result.tokens:,} training tokens",
    ]


def _status(result: BlockResult | SelectorResult) -> str:
    return "finished before; --restart trains again" if result.was_finished else "done"
