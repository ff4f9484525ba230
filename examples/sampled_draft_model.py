"""A draft model under sampling on stories260K: what the theory predicts, and what is measured.

    python examples/sampled_draft_model.py [--trained] [--accept RULE] [--json FILE]

The draft model is made of the target's first layers, without training; with --trained it is the GPT
of draft_model.py (three minutes for the first time). Prints for each rule and draft length the
acceptance rate, tokens per call, cost of a call, overhead of drafting and speed (Leviathan et al.
2023), and then how many of four draft tokens are kept by each way to draft, also where the target
drafts for itself.
"""

import argparse
import copy
import json
from pathlib import Path

import torch

from lattice_bpd.atomic_files import write_text
from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.decode import DecodeStats, decode
from lattice_bpd.decode.drafters import NoDrafter
from lattice_bpd.verify import Sampled, parse_acceptance
from lattice_bpd_drafters.draft_model import DraftModelDrafter
from lattice_bpd_kim2024.cli.speculation import make_table
from lattice_bpd_kim2024.live.speculation import measure_speculation
from lattice_bpd_kim2024.llama2c import load_llama2c

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
RULES = ("rejection:1.0", "rejection:0.5", "rejection:1.0,top_p=0.9", "sampled:1.0",
         "rejection:1.0,lenience=0.5")  # fmt: skip
TEXTS, TOKENS, BEGIN = 12, 96, 1

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--model", type=Path, default=SHARED / "stories260K" / "stories260K.bin")
parser.add_argument("--layers", type=int, default=4, help="layers of the draft model (default 4)")
parser.add_argument("--trained", action="store_true", help="use the draft model of draft_model.py")
parser.add_argument("--accept", action="append", metavar="RULE", help="repeatable")
parser.add_argument("--json", type=Path, metavar="FILE")
args = parser.parse_args()
torch.set_num_threads(1)
if args.trained:
    from stories260k_draft import load

    blockwise, _, small, prompts = load()
    model, prompts = blockwise.base, prompts[:TEXTS]
else:
    model = load_llama2c(args.model)
    small = copy.deepcopy(model)
    small.model.layers = small.model.layers[: args.layers]
    small.config.num_hidden_layers = args.layers
    rule = Sampled(0.8, seed=list(range(TEXTS)))
    begun = decode(model, [[BEGIN]] * TEXTS, NoDrafter(), max_new_tokens=15, acceptance=rule)
    prompts = [[BEGIN, *result.token_ids] for result in begun]

rules = [parse_acceptance(rule) for rule in args.accept or RULES]
lengths, watcher = [1, 2, 4, 8], ConsoleWatcher(make_console(), {})
watcher.begin("sampling", len(rules) * (1 + len(lengths)) * len(prompts))
runs = measure_speculation(
    model, small, prompts, rules, lengths, max_new_tokens=TOKENS, on_text=watcher.advance
)
watcher.end()
watcher.console.print(make_table(runs))

kept = []
for name, draft_model in (("draft model", small), ("the target itself", model)):
    for shape in ("chain", "sampled", "sampled_tree"):
        for rule in rules:
            stats = DecodeStats()
            drafter = DraftModelDrafter(draft_model, shape=shape, draft_length=4, max_nodes=16)
            for result in decode(model, prompts, drafter, max_new_tokens=TOKENS, acceptance=rule):
                stats.merge(result.stats)
            mean = sum(stats.accept_lengths) / len(stats.accept_lengths)
            kept.append({"drafts": name, "shape": shape, "rule": str(rule), "kept": mean})
            print(f"{name:18} {shape:13} {rule!s:34} {mean:.2f} of 4 slots kept")
if args.json is not None:
    lines = {"speculation": [run.to_json() for run in runs], "kept": kept}
    write_text(args.json, json.dumps(lines, indent=2) + "\n")
