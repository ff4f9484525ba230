"""Prediction heads on causal LMs, and their checkpoints.

Uses torch and transformers only; importing it without them raises an error that names the extra.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401  (to fail early, with advice)
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"lattice_bpd: the package {error.name!r} is not installed; models, training and decoding "
        "need torch and transformers; run: pip install 'lattice-bpd[torch]'"
    ) from error

from lattice_bpd.models.checkpoint import load_heads
from lattice_bpd.models.head_files import OtherTargetWarning
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.models.vocabulary_heads import VocabularyHeads

__all__ = [
    "BlockwiseHeads",
    "OtherTargetWarning",
    "VocabularyHeads",
    "load_heads",
]
