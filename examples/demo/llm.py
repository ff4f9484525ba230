"""A real LLM with drafts: a table of the yardstick, and one answer in colors.

    make demo                      # SmolLM2-135M-Instruct, fetched once (93 MB)
    make demo ARGS=--small         # the tiny model of examples/demo_model: no network
    make demo ARGS="--chat TEXT"   # another question

The drafter is that of examples/smollm2, which `lattice-bpd build` made. Where the model cannot be
fetched, the tiny model is shown instead. Other options are demo.py's, of the tiny model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DRAFTER = ROOT / "examples" / "smollm2"
LINES = "transformers prompt lookup;mixture, text, any size;drafter of the folder"
MINUTES = 0.6  # of decoding for the table, which has three prompts or more
QUESTION = "Explain to a child in a few sentences why the sky is blue."


def fetch_model() -> Path | None:
    """The folder of the model; None, and a line that says why, if it cannot be had."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from fetch_smollm2 import fetch

    try:
        return fetch()
    except SystemExit as error:
        print(f"{error}\ndemo: no real LLM, so the tiny one; its gains are larger than an LLM's")
        return None


def show_llm(model: Path, question: str) -> None:
    """Print the table, and the answer to a question beside greedy decoding."""
    table = ["--lines", LINES, "--minutes", str(MINUTES), "--tokens", "64"]
    run(sys.executable, ROOT / "benchmarks" / "bench_llm.py", "--drafter", DRAFTER, *table)
    print(f"\n{question}\n", flush=True)
    options = ["--drafter", DRAFTER, "--max-new-tokens", "160", "--compare", "--chat", question]
    run(sys.executable, "-m", "lattice_bpd.cli", "generate", model, *options)


def run(*command: object) -> None:
    """Run a command; end with its status if it fails."""
    status = subprocess.run([str(part) for part in command], check=False).returncode
    if status:
        raise SystemExit(status)


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="the tiny model, without a network")
    parser.add_argument("--chat", metavar="TEXT", default=QUESTION, help="what to ask")
    args, others = parser.parse_known_args()
    model = None if args.small or others else fetch_model()
    if model is not None:
        show_llm(model, args.chat)
    else:
        run(sys.executable, Path(__file__).with_name("demo.py"), *others)


if __name__ == "__main__":
    main()
