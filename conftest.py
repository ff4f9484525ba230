"""Fixtures that any test may use, those of packages/ and research/ too.

Laws on random inputs are parametrized by `seed`, so that a failing test has its seed in its name;
the `rng` fixture uses that seed.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.lm import read_lm
from small_arpa import SMALL_ARPA

# A shell ignores SIGINT for commands in the background; commands under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[1] / "shared" / "data"


@pytest.fixture
def seed() -> int:
    """The seed of a test that is not parametrized by one."""
    return 0


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Random numbers of the test's own seed."""
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of corpora and model files that lies beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"no {SHARED.parent.name}/{SHARED.name} beside the checkout")
    return SHARED


@pytest.fixture(scope="session")
def small_arpa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SMALL_ARPA as a file."""
    path = tmp_path_factory.mktemp("lm") / "small.arpa"
    path.write_text(SMALL_ARPA)
    return path


@pytest.fixture(scope="session")
def small_lm(small_arpa: Path) -> NGramLM:
    """The trigram model of SMALL_ARPA over 4 tokens."""
    return read_lm(small_arpa, vocab_size=4)


@pytest.fixture
def core_of(tmp_path: Path) -> Iterator["ArpaToLm"]:
    """Makes an NGramLM of ARPA text, as ``core_of(text, vocab_size=9)``."""
    return ArpaToLm(tmp_path)


class ArpaToLm:
    """Writes ARPA text to a file of its own and reads it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(self, text: str | bytes, **options: object) -> NGramLM:
        path = self._folder / f"{self._count}.arpa"
        self._count += 1
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_lm(path, **options)
