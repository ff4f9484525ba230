"""PEagleDrafter against the model of vLLM's speculators, from files that it writes.

Random weights; all logits of its training forward, in which a row for each anchor and depth sees
the exact rows up to its anchor and the mask rows of its own anchor, as in drafting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip(
    "speculators", reason="needs vLLM's speculators with its dependencies", exc_type=ImportError
)

import torch
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.peagle import core
from speculators.models.peagle.config import PEagleSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig

from lattice_bpd_drafters.p_eagle import PEagleDrafter
from parallel_drafters import MASK, WIDTH, layers, scatter
from target_models import VOCAB

SLOTS, LENGTH = 4, 9
CASES: list[dict[str, Any]] = [
    {}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"fc_norm": True},
    {"draft_vocab_size": 20},
]  # fmt: skip


def build(kind: str, options: dict[str, Any]) -> Any:
    method = GreedyTokenProposalConfig(speculative_tokens=SLOTS)
    usage = SpeculatorsConfig(
        algorithm="peagle", proposal_methods=[method], default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=[]),
    )  # fmt: skip
    shape = layers(kind)
    shape._attn_implementation = "eager"
    config = PEagleSpeculatorConfig(
        transformer_layer_config=shape, **{"draft_vocab_size": VOCAB, **options},
        eagle_aux_hidden_state_layer_ids=[2, 1, 0], mask_token_id=MASK, speculators_config=usage,
    )  # fmt: skip
    model = scatter(core.PEagleDraftModel(config))
    if model.d2t is not None:
        model.d2t.copy_(torch.arange(20) + 1)
        model.t2d[torch.arange(20) * 2 + 1] = True
    return model


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("options", CASES)
@torch.no_grad()
def test_logits_are_those_of_speculators(
    kind: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "disable", True)
    model = build(kind, options)
    pairs = [(anchor, depth) for depth in range(SLOTS) for anchor in range(LENGTH - depth)]
    indices = tuple(torch.tensor(part) for part in zip(*pairs, strict=True))
    monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **_: indices)
    monkeypatch.setattr(core, "compute_metrics", lambda **_: (torch.tensor(0.0), {}))
    expected: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _input, output: expected.append(output))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, MASK, (1, LENGTH + 1), generator=generator)
    features = torch.randn(1, LENGTH, 3 * WIDTH, generator=generator)
    model(
        hidden_states=features, input_ids=tokens[:, 1:], document_ids=torch.zeros(1, LENGTH).long(),
        verifier_last_hidden_states=torch.zeros(1, LENGTH, WIDTH),
    )  # fmt: skip

    model.save_pretrained(tmp_path)
    drafter = PEagleDrafter.from_pretrained(tmp_path)
    assert (drafter.num_slots, drafter.hidden_layers) == (SLOTS, (1, 0, -1))
    cache, start = drafter.new_cache(1), 0
    for end in (1, 3, 4, 6):
        drafter.append(cache, features[:, start:end], [end - start], tokens[:, start:end])
        logits = drafter.logits(drafter.draft_states(cache, tokens[:, end]))[0]
        for depth in range(SLOTS):
            row = expected[0][0, pairs.index((end - 1, depth))]
            torch.testing.assert_close(logits[depth], row, rtol=1e-4, atol=1e-4)
        start = end
