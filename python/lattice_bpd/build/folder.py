"""The folder of a built drafter: drafter.json, LMs, heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedModel

from lattice_bpd.build.choice import Choice
from lattice_bpd.build.job import BuildJob
from lattice_bpd.decode.strategies.drafter_file import DrafterFile
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.models.vocabulary_heads import VOCABULARY_FILES, VocabularyHeads


def write_folder(
    model: PreTrainedModel,
    job: BuildJob,
    vocab_size: int,
    choice: Choice,
    heads: VocabularyHeads | None,
) -> None:
    """Write the sources that were chosen, and drafter.json last; files of others are removed.

    Raises:
        OSError: the folder cannot be written.
    """
    folder, lms = job.output, []
    (folder / "drafter.json").unlink(missing_ok=True)
    for number, lm in enumerate(choice.lms):
        lms.append(_write_lm(folder, f"ngram{number or ''}.lm", lm))
    names = {about["file"] for about in lms}
    for path in folder.glob("*.lm"):
        if path.name not in names:
            path.unlink()
    if heads is None:
        for name in (VOCABULARY_FILES.config_name, VOCABULARY_FILES.weights_name):
            (folder / name).unlink(missing_ok=True)
    else:
        try:
            heads.save_pretrained(folder, model)
        except SafetensorError as error:  # such as a full disk
            raise OSError(f"{folder}: the heads cannot be written ({error})") from error
    config = DraftConfig(
        "mixture", sources=(*(["heads"] if heads else []), *(["lm"] if lms else []), "text")
    )
    predicted = {"gain": choice.gain.to_json(), "tokens_per_call": choice.tokens_per_call}
    DrafterFile(
        config, vocab_size, heads.num_slots if heads else 0, predicted=predicted, lms=lms,
        gates=choice.gates.to_dict(),
    ).save(folder / "drafter.json")  # fmt: skip


def _write_lm(folder: Path, name: str, lm: NGramLM) -> dict[str, Any]:
    lm.save(folder / name)
    return {"file": name, "order": lm.order, "vocab_size": lm.vocab_size}
