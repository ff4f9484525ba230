"""Every architecture of transformers is decoded as its own generate does, or refused.

A third is checked by default, all with LATTICE_BPD_ALL_ARCHITECTURES=1 (`make
test-architectures`).
"""

from __future__ import annotations

import os
import zlib

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from architectures import check_architecture, list_architectures
from config_overrides import NOT_BUILT

ALL = os.environ.get("LATTICE_BPD_ALL_ARCHITECTURES", "0") not in ("", "0")
CHOSEN = [one for one in list_architectures() if ALL or zlib.crc32(one.name.encode()) % 3 == 0]


@pytest.mark.parametrize("architecture", CHOSEN, ids=lambda one: one.name)
def test_equal_or_refused(architecture):
    if architecture.name in NOT_BUILT:
        pytest.skip(NOT_BUILT[architecture.name])
    verdicts = check_architecture(architecture)
    assert verdicts
    assert not [verdict for verdict in verdicts if verdict.failed]
