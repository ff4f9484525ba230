"""Recording a task: decode its prompts, keep the heads at every position, shard by shard.

A run that was stopped goes on behind its last whole shard; damaged shards are recorded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lattice_bpd.decode.drafters.basic import BlockDrafter
from lattice_bpd.decode.loop.batch import decode_batch
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.evaluate.record.manifest import (
    MANIFEST_FILE,
    Manifest,
    Shard,
    fingerprint_model,
    fingerprint_prompts,
    load_manifest,
)
from lattice_bpd.evaluate.record.shards import checksum, write_shard
from lattice_bpd.evaluate.record.texts import RecordedText, record_text
from lattice_bpd.extras import require

MAX_TOP_K = 64


@dataclass(frozen=True)
class Prompt:
    """A prompt to decode.

    Attributes:
        token_ids: (T,) ints.
        name: what its task calls it.
        references: texts that the output is judged by.
        kind: its category within the task, where there are some.
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
        max_new_tokens: most tokens behind each prompt.
        stop_token_ids: a text ends behind the first of these.
        batch_size: prompts decoded together.
        texts_per_shard: where a stopped run can go on.
        truncate: cut too long prompts at their beginning, so that max_new_tokens have room.
    """

    top_k: int = 16
    max_new_tokens: int = 64
    stop_token_ids: tuple[int, ...] = ()
    batch_size: int = 8
    texts_per_shard: int = 64
    truncate: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if not 1 <= self.top_k <= MAX_TOP_K:
            raise ValueError(f"record: top_k is {self.top_k}; expected 1..{MAX_TOP_K}")
        for name in ("max_new_tokens", "batch_size", "texts_per_shard"):
            if getattr(self, name) < 1:
                raise ValueError(f"record: {name} is {getattr(self, name)}; expected 1 or more")


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
        directory: the record's folder; made where it is missing. Where it holds a part of the same
            record, recording goes on behind it.
        model: a BlockwiseLM, or a causal LM of `transformers` with heads.
        prompts: one or more.
        options: how to record.
        heads: see `lattice_bpd.decode.generate`.
        task: name of the task.
        model_name: the model's folder, for the manifest.
        tokenizer: the tokenizer's file, for the manifest.
        on_text: called with the texts done and all texts, at first and after each batch.

    Returns:
        The manifest.

    Raises:
        ValueError: no prompts, prompts longer than the target's positions, options out of range,
            or a folder with the record of something else.
        OSError: the disk is full, or the folder cannot be written; whole shards are kept.
        ImportError: pyarrow is missing (extra `eval`).
    """
    require("pyarrow", "eval")  # before the target has done any work
    options, directory = options or RecordOptions(), Path(directory)
    drafting = DraftingModel(model, heads)
    drafting.require_causal("record")
    if options.top_k > drafting.vocab_size:
        raise ValueError(
            f"record: top_k is {options.top_k}; expected 1..{drafting.vocab_size}, the vocabulary"
        )
    prompts = _fit(prompts, drafting, options)
    manifest = _begin(directory, drafting, prompts, options, task, model_name, tokenizer)
    size = options.texts_per_shard
    done = sum(shard.texts for shard in manifest.shards if shard is not None)
    if on_text is not None:
        on_text(done, len(prompts))
    for number, there in enumerate(manifest.shards):
        if there is not None:
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
    """Greedy outputs, found by decoding with BPD, and the heads along them."""
    outputs = decode_batch(
        model,
        [prompt.token_ids for prompt in prompts],
        BlockDrafter(),
        max_new_tokens=options.max_new_tokens,
        stop_token_ids=options.stop_token_ids,
    )
    return [
        record_text(
            model,
            prompt.token_ids,
            found.token_ids,
            top_k=options.top_k,
            max_new_tokens=options.max_new_tokens,
            finish=found.finish,
            task=f"{task}/{prompt.kind}" if prompt.kind else task,
            name=prompt.name,
            references=prompt.references,
        )
        for prompt, found in zip(prompts, outputs, strict=True)
    ]


def _fit(
    prompts: Sequence[Prompt], model: DraftingModel, options: RecordOptions
) -> Sequence[Prompt]:
    """Prompts that the target has positions for."""
    if not prompts:
        raise ValueError("record: no prompts; expected one or more")
    most = model.max_positions
    if most is None:
        return prompts
    keep = max(1, most - options.max_new_tokens + 1)
    found = []
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
        found.append(prompt)
    return found


def _begin(
    directory: Path, model: DraftingModel, prompts: Sequence[Prompt], options: RecordOptions,
    task: str, model_name: str, tokenizer: str | None,
) -> Manifest:  # fmt: skip
    """The manifest to go on with: a new one, or that of the same record without damaged shards."""
    if model.num_slots is None:  # callables tell with their first answer
        model.head_logits(model.target.embedding.weight[:1], [0])
    shards = -(-len(prompts) // options.texts_per_shard)
    new = Manifest(
        task=task, model=model_name, model_fingerprint=fingerprint_model(model),
        prompts_fingerprint=fingerprint_prompts([prompt.token_ids for prompt in prompts]),
        vocab_size=model.vocab_size, num_slots=model.num_slots or 0,
        max_positions=model.max_positions, top_k=options.top_k,
        max_new_tokens=options.max_new_tokens, stop_token_ids=sorted(options.stop_token_ids),
        num_texts=len(prompts), texts_per_shard=options.texts_per_shard, tokenizer=tokenizer,
        shards=[None] * shards,
    )  # fmt: skip
    if (directory / MANIFEST_FILE).is_file():
        old = load_manifest(directory)
        differing = old.differences(new)
        if differing:
            raise ValueError(
                f"{directory}: has the record of something else ({'; '.join(differing)}); expected "
                "an empty folder or the same record; give another folder or delete this one"
            )
        new.shards = [shard if _is_whole(directory, shard) else None for shard in old.shards]
    directory.mkdir(parents=True, exist_ok=True)
    new.save(directory)
    return new


def _is_whole(directory: Path, shard: Shard | None) -> bool:
    if shard is None or not (directory / shard.file).is_file():
        return False
    return checksum(directory / shard.file) == shard.sha256
