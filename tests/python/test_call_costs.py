"""Times of the target's calls, from a file."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


from lattice_bpd import FormatError
from lattice_bpd.build.job import read_costs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"0": 1.0}', "1 sizes; expected two or more"),
        ('{"0": 1.0, "8": 0}', "8 draft tokens in 0.0 ms"),
        ('{"0": 1.0, "many": 2}', "not a cost curve"),
        ("[1, 2]", "not a cost curve"),
        ('{"0": 1.0, "-8": 2}', "-8 draft tokens"),
    ],
)
def test_files_that_are_no_cost_curves_are_refused(tmp_path, text, message):
    (tmp_path / "cost.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        read_costs(tmp_path / "cost.json")
