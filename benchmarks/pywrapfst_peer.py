"""pywrapfst as a peer: compose and shortestpath from Python.

pywrapfst has no failure matcher, so that backoff arcs can only be epsilon arcs. That is what its
users do, and it is not the same model: a path may back off where the longer n-gram is there. Its
best score is therefore an upper bound of the right one, which is what can be asserted.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from lattices import Lattices, rescore
from timing import Times, summarize

from lattice_bpd import NGramLM, SausageLattice


class PeerResult(NamedTuple):
    """Times, and the share of lattices whose best path is the right one all the same."""

    times: Times
    same_best: float


def measure_pywrapfst(lattices: Lattices, lm: NGramLM, num_drafts: int) -> PeerResult:
    """Compose + shortestpath for each lattice; the LM's FST is built before.

    Raises:
        ImportError: pywrapfst is missing.
    """
    import pywrapfst

    model = lm.to_pywrapfst(bos=False)  # state 0: no history
    model.relabel_pairs(ipairs=[(lm.failure_label, 0)], opairs=[(lm.failure_label, 0)])
    model.arcsort("ilabel")
    right_ids, right_scores, _ = rescore(lattices, lm, 1, "fused")
    seconds, same = [], 0
    for n, context in enumerate(lattices.contexts):
        model.set_start(_walk(model, context))
        slots = zip(lattices.token_ids[n], lattices.scores[n], strict=True)
        lattice = SausageLattice(slots).to_pywrapfst()
        start = time.thread_time()
        composed = pywrapfst.compose(lattice, model)
        shortest = pywrapfst.shortestpath(composed, nshortest=num_drafts)
        seconds.append(time.thread_time() - start)
        best = pywrapfst.shortestpath(shortest)
        tokens, cost = _read_path(best)
        assert -cost >= right_scores[n, 0] - 1e-3, (n, cost, right_scores[n, 0])
        same += tokens == right_ids[n, 0].tolist()
    return PeerResult(summarize(seconds), same / len(seconds))


def _walk(model: Any, context: Any) -> int:
    """The state after a context, taking failure arcs only if nothing else matches."""
    state = 0
    for label in (np.asarray(context) + 1).tolist():
        while True:
            arcs = {arc.ilabel: arc.nextstate for arc in model.arcs(state)}
            if label in arcs:
                state = arcs[label]
                break
            if 0 not in arcs:
                break
            state = arcs[0]
    return state


def _read_path(best: Any) -> tuple[list[int], float]:
    tokens, cost, state = [], 0.0, best.start()
    while best.num_arcs(state) > 0:
        arc = next(iter(best.arcs(state)))
        cost += float(arc.weight)
        tokens += [arc.ilabel - 1] if arc.ilabel else []
        state = arc.nextstate
    return tokens, cost + float(best.final(state))
