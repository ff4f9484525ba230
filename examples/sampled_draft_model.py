"""A draft model under sampling on stories260K: what the theory predicts, and what is measured.

    python examples/sampled_draft_model.py [--json FILE]

Prints for several rules and draft lengths the acceptance rate, tokens per call and speed (Leviathan
et al. 2023), and then how many draft tokens are kept by each way to draft. The draft model is that
of draft_model.py.
"""

import argparse
import json
from pathlib import Path

from stories260k_draft import load

from lattice_bpd.atomic_files import write_text
from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.cli.speculation import make_table
from lattice_bpd.decode import DecodeStats, decode
from lattice_bpd.decode.drafters import DraftModelDrafter
from lattice_bpd.evaluate.live.speculation import measure_speculation
from lattice_bpd.verify import Rejection, Sampled

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--json", type=Path, metavar="FILE")
args = parser.parse_args()
model, lm, small, prompts = load()
lengths, prompts = [1, 2, 4, 8], prompts[:40]
rules = [Rejection(), Rejection(0.5), Rejection(top_p=0.9), Rejection(lenience=0.5), Sampled()]
watcher = ConsoleWatcher(make_console(), {})
watcher.begin("sampling", len(rules) * (1 + len(lengths)) * len(prompts))
runs = measure_speculation(
    model, small, prompts, rules, lengths, max_new_tokens=96, on_text=watcher.advance
)
watcher.end()
watcher.console.print(make_table(runs))

kept = []
for draft_model, name in ((small, "draft model"), (model.base, "the target itself")):
    for shape in ("chain", "beam", "sampled", "sampled_tree"):
        for rule in (Rejection(0.5), Rejection(), Rejection(5.0), Sampled(0.5), Sampled()):
            stats = DecodeStats()
            drafter = DraftModelDrafter(draft_model, shape=shape, draft_length=4, max_nodes=24)
            for result in decode(model, prompts, drafter, max_new_tokens=64, acceptance=rule):
                stats.merge(result.stats)
            mean = sum(stats.accept_lengths) / len(stats.accept_lengths)
            kept.append({"drafts": name, "shape": shape, "rule": str(rule), "kept": mean})
            print(f"{name:18} {shape:13} {rule!s:23} {mean:.2f} of 4 slots kept")
if args.json is not None:
    lines = {"speculation": [run.to_json() for run in runs], "kept": kept}
    write_text(args.json, json.dumps(lines, indent=2) + "\n")
