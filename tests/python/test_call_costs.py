"""Times of the target's calls: from a file, and measured."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


from blockwise_models import trained_model
from lattice_bpd import FormatError
from lattice_bpd.build.call_costs import measure_costs
from lattice_bpd.build.job import read_costs
from lattice_bpd.decode import DraftingModel


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


def test_calls_of_a_model_are_measured(monkeypatch):
    """The first call of a size does not count; no size costs more than a larger one."""
    seconds = {0: [90, 1, 2, 1], 3: [90, 4, 5, 500], 9: [90, 2, 3, 3]}
    clock = [0.0]

    def verify(target, state, trees, layout):
        (size,) = (len(tree.token_ids) - 1 for tree in trees)
        clock[0] += seconds[size].pop(0)

    rounds, model = [], trained_model()
    costs = measure_costs(
        DraftingModel(model), (0, 3, 9), rounds=3, on_round=lambda: rounds.append(1)
    )
    assert list(costs) == [0, 3, 9]
    assert 0.0 < costs[0] <= costs[3] <= costs[9]
    assert len(rounds) == 4
    monkeypatch.setattr("lattice_bpd.build.call_costs.verify_trees", verify)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    bare = DraftingModel(model.base)
    assert measure_costs(bare, (0, 3, 9), rounds=3) == {0: 1e3, 3: 3e3, 9: 3e3}
    assert not any(seconds.values())
