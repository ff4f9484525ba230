"""Formats of drafters that this library cannot load, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError

SUPPORTED = (
    "DFlash, DFlash2, LiLiCorr and DSpark drafters of z-lab and SpecForge (architectures "
    "['DFlashDraftModel'], 'DFlash2DraftModel', 'LiLiCorrDraftModel'), DSpark of DeepSpec "
    "('Qwen3DSparkModel'), DFlash and DSpark of speculators (speculators_model_type 'dflash', "
    "'dspark') and DFlash of transformers (model_type 'muse_glimmer_assistant')"
)

_PREFIXES = "its logits depend on whole prefixes of the draft"
_REASONS = {
    "dcoco": ("DCOCO", "the formula of its scores has not been published"),
    "domino": ("Domino", _PREFIXES),
    "xpress": ("xPress", "its logits depend on the whole draft"),
}


def refuse_other_drafters(path: Path, content: Mapping[str, Any]) -> None:
    """Raise FormatError if a config.json names a drafter of another family.

    Args:
        path: of the file, for messages.
        content: its object.
    """
    inner = content.get("dflash_config")
    inner = inner if isinstance(inner, Mapping) else {}
    fields = {
        "architectures": content.get("architectures"),
        "speculators_model_type": content.get("speculators_model_type"),
        "model_type": content.get("model_type"),
        "dflash_config.projector_type": inner.get("projector_type"),
    }
    for key, value in fields.items():
        for fragment, (name, reason) in _REASONS.items():
            if fragment in str(value).lower():
                raise FormatError(
                    f"{path}: is a {name} drafter ({key}); {reason}, which is not supported yet; "
                    f"supported are {SUPPORTED}"
                )
