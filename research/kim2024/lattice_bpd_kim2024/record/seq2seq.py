"""Recording of encoder-decoders in memory: greedy outputs of sources, and the heads along them.

The texts replay, sweep and tune like those of causal models: `Recording(record_sources(..))`. Their
prompt is the decoder's, since that is what drafts see; the source acts through the heads alone.
`write_record` writes the same texts to a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lattice_bpd.decode.drafters.argmax import ArgmaxDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd_kim2024.record.heads import record_text
from lattice_bpd_kim2024.record.texts import RecordedText


def record_sources(
    target: Any,
    heads: Any,
    sources: Sequence[Sequence[int]],
    *,
    top_k: int = 16,
    max_new_tokens: int = 64,
    on_text: Callable[[], None] | None = None,
) -> list[RecordedText]:
    """Decode sources greedily and keep the heads' candidates at every position of the outputs.

    Args:
        target: an encoder-decoder of `transformers` or its target; outputs end after its stop
            tokens.
        heads: such as a SpecDrafter; see `lattice_bpd.decode.generate`.
        sources: token ids of each.
        top_k: k, candidates kept of each slot, 1..V.
        max_new_tokens: most tokens of an output.
        on_text: called after each source.

    Returns:
        A text for each source, with its index as `name`.

    Raises:
        TypeError: not an encoder-decoder.
        ValueError: no source, no heads, or numbers out of range.
    """
    model = DraftingModel(target, heads)
    if model.target.decoder_prompt is None:
        raise TypeError(
            f"record_sources: {type(model.target.base).__name__} is no encoder-decoder; use "
            "write_record or record"
        )
    if not sources or model.heads is None or not 1 <= top_k <= model.vocab_size:
        raise ValueError(
            f"record_sources: {len(sources)} sources, heads {heads!r}, top_k {top_k}; expected one "
            f"source or more, heads, and 1..{model.vocab_size}"
        )
    texts = []
    for number, source in enumerate(sources):
        result = decode(
            model, source, ArgmaxDrafter(), max_new_tokens=max_new_tokens,
            stop_token_ids=model.target.stop_token_ids,
        )  # fmt: skip
        texts.append(
            record_text(
                model, source, result.token_ids, top_k=top_k, max_new_tokens=max_new_tokens,
                finish=result.finish, name=str(number),
            )
        )  # fmt: skip
        if on_text is not None:
            on_text()
    return texts
