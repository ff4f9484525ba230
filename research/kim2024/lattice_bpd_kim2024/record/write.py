"""Recording: decode prompts and keep the heads' candidates, shard by shard.

An interrupted run continues after its last complete shard; damaged shards are recorded again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lattice_bpd.decode.drafters.p_best import ArgmaxDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.extensions import require
from lattice_bpd.models.checkpoint import find_stop_tokens
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.blockwise import to_drafting
from lattice_bpd_kim2024.record.files import (
    MANIFEST_FILE,
    Manifest,
    Shard,
    checksum,
    fingerprint_model,
    fingerprint_prompts,
    load_manifest,
    write_shard,
)
from lattice_bpd_kim2024.record.heads import head_logits, record_text
from lattice_bpd_kim2024.record.texts import RecordedText

MAX_TOP_K = 64


@dataclass(frozen=True)
class Prompt:
    """A prompt to decode.

    Attributes:
        token_ids: (T,) ints.
        name: its id within the task.
        references: texts that the output is judged by.
        kind: its category within the task, if there are any.
    """

    token_ids: Sequence[int]
    name: str = ""
    references: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class RecordOptions:
    """How to record.

    Attributes:
        top_k: k, candidates kept of each head, 1..64.
        max_new_tokens: maximum number of tokens after each prompt.
        stop_token_ids: a text ends after the first of these; None: after those of the model, see
            `find_stop_tokens`.
        batch_size: prompts decoded together.
        texts_per_shard: texts that an interruption can lose.
        truncate: cut overlong prompts at their beginning, so that max_new_tokens fit after them.
    """

    top_k: int = 16
    max_new_tokens: int = 64
    stop_token_ids: tuple[int, ...] | None = None
    batch_size: int = 8
    texts_per_shard: int = 64
    truncate: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 1 <= self.top_k <= MAX_TOP_K:
            raise ValueError(f"record: top_k is {self.top_k}; expected 1..{MAX_TOP_K}")
        for name in ("max_new_tokens", "batch_size", "texts_per_shard"):
            if getattr(self, name) < 1:
                raise ValueError(f"record: {name} is {getattr(self, name)}; expected 1 or more")


class TextProgress:
    """Advances a watcher by each text, where recording reports batches."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._done: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """Texts done of all; the first call has those that an earlier run recorded."""
        if self._done is not None:
            for _ in range(done - self._done):
                self._watcher.advance(total)
        self._done = done


def write_record(
    directory: str | Path,
    model: Any,
    prompts: Sequence[Prompt],
    options: RecordOptions | None = None,
    *,
    heads: Any = None,
    task: str = "",
    model_name: str = "",
    tokenizer: str | None = None,
    on_text: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Decode prompts greedily and record the heads at every position of the outputs.

    Args:
        directory: the record's folder, created if missing. If it holds a part of the same record,
            recording continues after that part.
        model: a BlockwiseLM, a causal LM or an encoder-decoder of `transformers` with heads, a
            target, or a DraftingModel.
        prompts: one or more; of an encoder-decoder the sources.
        options: how to record. Where an encoder-decoder decodes no batches, sources are decoded one
            at a time.
        heads: see `lattice_bpd.decode.generate`.
        task: name of the task.
        model_name: the model's folder, for the manifest.
        tokenizer: the tokenizer's file, for the manifest.
        on_text: called with the number of texts done and of all texts, first and after each batch.

    Raises:
        ValueError: no prompts, prompts longer than the target's positions, options out of range,
            or a folder with the record of something else.
        OSError: the disk is full, or the folder cannot be written; complete shards are kept.
        ImportError: pyarrow is missing.
    """
    require("pyarrow", "lattice-bpd-kim2024")  # before the target does any work
    options, directory = options or RecordOptions(), Path(directory)
    drafting = to_drafting(model, heads)
    stops: Collection[int] | None = options.stop_token_ids
    size = options.batch_size
    if drafting.target.decoder_prompt is not None:
        stops = stops or drafting.target.stop_token_ids
        size = size if drafting.target.takes_positions else 1
    elif stops is None:
        stops = find_stop_tokens(drafting.target.base)
    stops = sorted(stops)
    options = replace(options, stop_token_ids=tuple(stops), batch_size=size)
    if options.top_k > drafting.vocab_size:
        raise ValueError(
            f"record: top_k is {options.top_k}; expected 1..{drafting.vocab_size}, the vocabulary"
        )
    prompts = _fit(prompts, drafting, options)
    if drafting.num_slots is None:  # callables show their number of heads in their first output
        head_logits(drafting, drafting.target.embedding.weight[:1], [0])
    manifest = Manifest(
        task=task, model=model_name, model_fingerprint=fingerprint_model(drafting),
        prompts_fingerprint=fingerprint_prompts([prompt.token_ids for prompt in prompts]),
        vocab_size=drafting.vocab_size, num_slots=drafting.num_slots or 0,
        max_positions=drafting.max_positions, top_k=options.top_k,
        max_new_tokens=options.max_new_tokens, stop_token_ids=stops,
        num_texts=len(prompts), texts_per_shard=options.texts_per_shard, tokenizer=tokenizer,
        shards=[None] * -(-len(prompts) // options.texts_per_shard),
    )  # fmt: skip
    _resume(directory, manifest)
    size = options.texts_per_shard
    done = sum(shard.texts for shard in manifest.shards if shard is not None)
    if on_text is not None:
        on_text(done, len(prompts))
    for number, written in enumerate(manifest.shards):
        if written is not None:
            continue
        part, texts = prompts[number * size : (number + 1) * size], []
        for start in range(0, len(part), options.batch_size):
            batch = part[start : start + options.batch_size]
            texts += _record_batch(drafting, batch, options, task)
            done += len(batch)
            if on_text is not None:
                on_text(done, len(prompts))
        path = directory / f"shard-{number:05d}.parquet"
        write_shard(path, texts)
        steps = sum(len(text.output) for text in texts)
        manifest.shards[number] = Shard(
            path.name, len(texts), steps, path.stat().st_size, checksum(path)
        )
        manifest.save(directory)
    return manifest


def _record_batch(
    model: DraftingModel, prompts: Sequence[Prompt], options: RecordOptions, task: str
) -> list[RecordedText]:
    """Greedy outputs, decoded with BPD drafts, and the heads along them."""
    outputs = decode(
        model,
        [prompt.token_ids for prompt in prompts],
        ArgmaxDrafter(),
        max_new_tokens=options.max_new_tokens,
        stop_token_ids=options.stop_token_ids or (),
    )
    return [
        record_text(
            model,
            prompt.token_ids,
            output.token_ids,
            top_k=options.top_k,
            max_new_tokens=options.max_new_tokens,
            finish=output.finish,
            task=f"{task}/{prompt.kind}" if prompt.kind else task,
            name=prompt.name,
            references=prompt.references,
        )
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def _fit(
    prompts: Sequence[Prompt], model: DraftingModel, options: RecordOptions
) -> Sequence[Prompt]:
    """Prompts that fit the target's positions, truncated if wished."""
    if not prompts:
        raise ValueError("record: no prompts; expected one or more")
    most = model.max_positions
    if most is None:
        return prompts
    is_source = model.target.decoder_prompt is not None
    keep = most if is_source else max(1, most - options.max_new_tokens + 1)
    fitting = []
    for number, prompt in enumerate(prompts):
        length = len(prompt.token_ids)
        if length > (keep if options.truncate else most):
            if not options.truncate:
                raise ValueError(
                    f"record: prompt {number} {prompt.name} has {length} tokens; the target has "
                    f"positions for {most}; leave it out, or cut long prompts at their beginning "
                    "(truncate=True, --truncate)"
                )
            prompt = replace(prompt, token_ids=prompt.token_ids[length - keep :])
        fitting.append(prompt)
    return fitting


def _resume(directory: Path, manifest: Manifest) -> None:
    """Take over the intact shards of the same record, and save the manifest."""
    if (directory / MANIFEST_FILE).is_file():
        old = load_manifest(directory)
        differing = old.differences(manifest)
        if differing:
            raise ValueError(
                f"{directory}: has the record of something else ({'; '.join(differing)}); expected "
                "an empty folder or the same record; give another folder or delete this one"
            )
        manifest.shards = [s if _is_intact(directory, s) else None for s in old.shards]
    directory.mkdir(parents=True, exist_ok=True)
    manifest.save(directory)


def _is_intact(directory: Path, shard: Shard | None) -> bool:
    if shard is None or not (directory / shard.file).is_file():
        return False
    return checksum(directory / shard.file) == shard.sha256
