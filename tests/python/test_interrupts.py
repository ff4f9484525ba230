"""Ctrl-C and SIGTERM inside one long call of the core: handled soon, no leftover files."""

import signal
import time

import numpy as np
import pytest

from endless import endless_process

# Does argv[1] over and over (so that the signal meets any part of it) through the command line.
COMMANDS = """
import os, sys, warnings
warnings.simplefilter("ignore")
from lattice_bpd.cli import main
folder, command = sys.argv[1], sys.argv[2]
os.environ["TMPDIR"] = folder
commands = {
    "train": ["train", f"{folder}/ids.npy", "--vocab-size", "3000", "-o", f"{folder}/out.lm"],
    "spill": ["train", f"{folder}/ids.npy", "--vocab-size", "3000", "-o", f"{folder}/out.lm",
              "--memory", "60M"],
    "prune": ["prune", f"{folder}/in.lm", "--prune-to", "100k", "-o", f"{folder}/out.lm"],
    "arpa": ["convert", f"{folder}/in.lm", f"{folder}/out.arpa"],
}
print("ready", flush=True)
status = 0
while status == 0:
    try:
        status = main(["ngram", *commands[command]])
    except KeyboardInterrupt:  # between two commands
        print("lattice-bpd: interrupted", file=sys.stderr)
        status = 130
sys.exit(status)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from lattice_bpd import NGramLM

    folder = tmp_path_factory.mktemp("interrupts")
    ids = np.random.default_rng(0).integers(0, 3000, 400_000).astype(np.int32)
    np.save(folder / "ids.npy", ids)
    NGramLM.train([ids], 3, vocab_size=3000, smoothing="witten_bell").save(folder / "in.lm")
    return folder


@pytest.mark.parametrize(
    ("command", "how"),
    [("train", signal.SIGINT), ("spill", signal.SIGINT), ("spill", signal.SIGTERM),
     ("prune", signal.SIGINT), ("arpa", signal.SIGTERM)],
)  # fmt: skip
def test_a_signal_ends_a_command_and_leaves_no_files(command, how, folder):
    before = sorted(path.name for path in folder.iterdir() if not path.name.startswith("out."))
    with endless_process(COMMANDS, str(folder), command) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3 + 0.4 * np.random.default_rng().random())
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else 143), errors
    assert errors.endswith("interrupted\n" if how == signal.SIGINT else "terminated\n")
    assert before == sorted(p.name for p in folder.iterdir() if not p.name.startswith("out."))
    assert not [path for path in folder.iterdir() if ".tmp." in path.name]
