"""Train the rescorer of the demo's model: a small causal LM for strategies neural and mixture.

    python examples/demo/train_demo_rescorer.py                  # about 20 s of one core
    python examples/demo/train_demo_rescorer.py --work DIR --out DIR

It learns from every eighth training file of the running Python's library, by `lattice-bpd rescorer
train`. Run it after `train_demo_model.py`, whose result has no rescorer.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

import torch

from lattice_bpd.atomic_files import write_text
from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd.models.checkpoint import load_target
from lattice_bpd.models.head_files import staged_folder
from lattice_bpd_kim2024.demo.library_text import read_library_sources
from lattice_bpd_kim2024.demo.model_folder import RESCORER_FOLDER
from lattice_bpd_kim2024.rescorer import RescorerJob, run_rescorer_job

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo_model"
TRAIN = {
    "steps": 130, "batch_size": 4, "sequence_length": 254, "warmup": 10, "precision": "fp32",
}  # fmt: skip


def main() -> None:
    """Train, convert to bfloat16 and write the folder."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, default=ROOT / "demo-out" / "rescorer", metavar="DIR")
    parser.add_argument("--out", type=Path, default=DEMO / RESCORER_FOLDER, metavar="DIR")
    args = parser.parse_args()
    quiet_transformers()
    args.work.mkdir(parents=True, exist_ok=True)
    text = args.work / "library.jsonl"
    if not text.is_file():
        sources = read_library_sources().train[::8]
        lines = [json.dumps({"text": source}) + "\n" for source in sources]
        write_text(text, "".join(lines))
    job = RescorerJob(
        DEMO, args.work / "rescorer", [str(text)],
        corpus={"boundaries": "document", "field": "text", "eos_id": 0}, size="tiny", train=TRAIN,
        validation_pieces=8, checkpoint_every=0,
    )  # fmt: skip
    console = make_console()
    with closing(ConsoleWatcher(console, {})) as watcher:
        result = run_rescorer_job(job, watcher)
    rescorer = load_target(result.output, dtype=torch.bfloat16)
    with staged_folder(args.out, last="config.json") as folder:
        rescorer.save_pretrained(folder)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    console.print(
        f"{args.out}: {result.num_parameters:,} parameters, {size / 1e6:.2f} MB, loss "
        f"{result.loss:.3f}, on validation text {result.validation_loss}, {result.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
