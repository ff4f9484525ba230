"""PardDrafter: a small causal LM that drafts all slots in one forward (PARD).

An et al. 2025, arXiv 2504.18583. An ordinary LM with embeddings of its own, which is trained to
predict the next tokens after mask tokens too. Its config.json has the mask's id as `pard_token`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.block_drafter.formats.config_reader import (
    CONFIG_NAME,
    ConfigReader,
    read_config_json,
)
from lattice_bpd.models.head_files import staged_folder
from lattice_bpd.models.lm_call import pass_cache
from lattice_bpd.models.parallel_drafter.base import ParallelDrafter
from lattice_bpd.models.parallel_drafter.cache import LayerCache, Unread
from lattice_bpd.models.parallel_drafter.layers import MODEL_TYPES

_NUM_SLOTS = 8  # depths that the authors train


class PardDrafter(ParallelDrafter):
    """Drafts the tokens after an anchor with a small LM that reads anchor and masks.

    Args:
        model: a Llama, Qwen2 or Qwen3 with the target's vocabulary and full attention.
        mask_token_id: the mask's token, `pard_token` in config.json.
        num_slots: H. Files do not say it; the authors train 8 and draft up to 12.

    Raises:
        ValueError: another model, or values out of range.
    """

    def __init__(
        self, model: PreTrainedModel, *, mask_token_id: int, num_slots: int = _NUM_SLOTS
    ) -> None:
        super().__init__(model.config, mask_token_id=mask_token_id, num_slots=num_slots)
        self.model = model
        self.d2t = None

    def attach(self, target: PreTrainedModel) -> None:
        """Check the target's vocabulary.

        Raises:
            ValueError: a target of another vocabulary.
        """
        embedding: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._check_vocabulary(embedding.weight.shape[0])

    def read(
        self,
        tokens: Tensor,
        unread: Sequence[Unread | None],  # noqa: ARG002
        positions: Tensor,
        attention_mask: Tensor,
        cache: LayerCache,
    ) -> Tensor:
        """See ParallelDrafter."""
        output: Any = self.model.base_model(
            input_ids=tokens, attention_mask=attention_mask, position_ids=positions,
            use_cache=True, **pass_cache(self.model.base_model, cache),
        )  # fmt: skip
        states: Tensor = output.last_hidden_state
        return states

    def logits(self, states: Tensor) -> Tensor:
        """(.., V) logits of states (.., D)."""
        output: Any = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        logits: Tensor = output(states)
        return logits

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path,
        *,
        num_slots: int = _NUM_SLOTS,
        dtype: torch.dtype | None = None,
    ) -> PardDrafter:
        """Read a checkpoint of a PARD model, on the CPU, in evaluation mode.

        Args:
            directory: of the checkpoint.
            num_slots: H.
            dtype: of the parameters; None: that of the file.

        Raises:
            FormatError: files that are missing, damaged, of another kind of model, or do not fit
                each other.
            ValueError: num_slots below 1.
        """
        directory = Path(directory)
        reader = ConfigReader(directory / CONFIG_NAME, read_config_json(directory))
        model_type = reader.get("model_type")
        if model_type not in MODEL_TYPES:
            reader.fail("model_type", model_type, f"one of {', '.join(MODEL_TYPES)}")
        mask = reader.integer("pard_token", minimum=0)
        if mask >= reader.integer("vocab_size"):
            reader.fail("pard_token", mask, f"an integer below {reader.get('vocab_size')}")
        model = _load_model(directory, dtype)
        try:
            return cls(model, mask_token_id=mask, num_slots=num_slots).eval()
        except ValueError as error:
            if num_slots < 1:
                raise
            raise FormatError(f"{reader.path}: {error}; this checkpoint cannot be loaded") from None

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the model, with `pard_token` in its config.json.

        Raises:
            OSError: the directory cannot be written.
        """
        self.model.config.pard_token = self.mask_token_id
        with staged_folder(Path(directory), last=CONFIG_NAME) as folder:
            self.model.save_pretrained(folder)


def _load_model(directory: Path, dtype: torch.dtype | None) -> PreTrainedModel:
    """The LM, if the files have all of its tensors and no others.

    Raises:
        FormatError: otherwise.
    """
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, output_loading_info=True, dtype=dtype or "auto",
            attn_implementation="sdpa",
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise FormatError(f"{directory}: cannot be loaded ({error}); copy it again") from error
    model: PreTrainedModel
    model, report = loaded
    for key, verb in (("missing_keys", "lacks"), ("unexpected_keys", "has unknown tensors")):
        if names := sorted(report[key]):
            raise FormatError(
                f"{directory}: {verb} {', '.join(names[:3])}; expected the tensors of the model in "
                f"{CONFIG_NAME}; copy the checkpoint again"
            )
    return model
