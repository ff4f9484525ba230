"""Every architecture of transformers is decoded as its own generate does, or refused.

A third is checked by default, all with LATTICE_BPD_ALL_ARCHITECTURES=1 (`make
test-architectures`).
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from zoo import check_architecture, is_in_third, list_architectures

ALL = os.environ.get("LATTICE_BPD_ALL_ARCHITECTURES", "0") not in ("", "0")
CHOSEN = [entry for entry in list_architectures() if ALL or is_in_third(entry)]


@pytest.mark.parametrize("architecture", CHOSEN, ids=lambda entry: entry.name)
def test_equal_or_refused(architecture):
    result = check_architecture(architecture)
    if result.not_built is not None:
        pytest.skip(result.not_built)
    failed = [
        f"{verdict.outcome}: {verdict.case.name}: {verdict.detail} (position {verdict.position}, "
        f"margin {verdict.margin})"
        for verdict in result.verdicts
        if verdict.failed
    ]
    assert not failed, "\n".join([architecture.class_name, *failed])
    assert result.verdicts
