"""What draft_model.py decodes with: the parts of `stories260k.py --quick` and a draft model.

The draft model is a small example: a GPT of one layer trained on the output of stories260K.
Everything is made in about three minutes and kept; the next run loads it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from stories260k import read_arguments
from stories260k_parts import QUICK, prepare
from stories260k_scorers import ScorerRecipe, cached_rescorer
from transformers import PreTrainedModel

from lattice_bpd import NGramLM
from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd_kim2024.blockwise import BlockwiseLM

SMALL = ScorerRecipe(hidden_size=64, num_layers=1)


def load(work: Path | None = None) -> tuple[BlockwiseLM, NGramLM, PreTrainedModel, list[list[int]]]:
    """Target with heads, n-gram LM, draft model, and prompts that none of them learnt from."""
    torch.set_num_threads(1)
    args, watcher = read_arguments([]), ConsoleWatcher(make_console(), {})
    args.work = work or args.work
    made = prepare(args, QUICK, "quick", watcher)
    small = cached_rescorer(made.work, made.rows, SMALL, watcher)
    return made.model, made.lm, small, made.found.test
