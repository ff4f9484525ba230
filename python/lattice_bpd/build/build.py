"""Responses, an n-gram LM, heads, gates and the choice among them, as one folder."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from lattice_bpd.atomic_files import locked, write_text
from lattice_bpd.build.call_costs import interpolate_costs, measure_costs
from lattice_bpd.build.choice import (
    COST_ROUNDS,
    COST_SIZES,
    FITTING,
    HELD_OUT,
    MAX_NODES,
    OWN_SECONDS,
    Choice,
    Decode,
    Source,
    choose_sources,
)
from lattice_bpd.build.job import FEWEST_CHATS, BuildJob, split_chats
from lattice_bpd.build.known_texts import decode_known
from lattice_bpd.build.live import LIVE_PROMPTS, LIVE_SHARE, decode_live
from lattice_bpd.build.plan import make_plan, make_server
from lattice_bpd.build.report import BuildResult, describe_drafter, describe_repetition
from lattice_bpd.decode.drafter_file import DrafterFile
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.replay import KnownText, ReplayResult
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.training import SmoothingWarning
from lattice_bpd.models.checkpoint import find_stop_tokens
from lattice_bpd.models.head_files import identify, name_of
from lattice_bpd.models.hooks import device_of
from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.models.vocabulary_heads import VOCABULARY_FILES, VocabularyHeads
from lattice_bpd.train.head_states import StateFile
from lattice_bpd.train.responses.collect import (
    Exchange,
    collect_responses,
    read_responses,
    write_prompts,
)
from lattice_bpd.train.responses.formats import Chat
from lattice_bpd.train.responses.prompts import (
    Skipped,
    describe_skipped,
    encode_prompt,
    find_problem,
    find_usable,
)
from lattice_bpd.train.responses.store import ResponseStore
from lattice_bpd.train.vocabulary_heads import (
    VocabularyHeadsOptions,
    find_positions,
    measure_accuracy,
    most_frequent,
    train_vocabulary_heads,
    vary_exchanges,
)
from lattice_bpd.watcher import Watcher

_KEPT = (  # beside the drafter, by version 0.2.0
    "own_prompts.jsonl", "responses.jsonl", "states.bin.jsonl", "states.bin", "heads.checkpoint",
)  # fmt: skip
_GREETING = Chat([{"role": "user", "content": "Hello"}], "a first prompt")
_VARIED_SLOTS = 2  # of the heads, that varied texts train
_TOP_K = 16  # candidates of each slot of the heads
_ROWS = 1024  # states that heads read at once; glibc's heap keeps what smaller calls free
_CHECKED = 16  # responses that are compared with the model; tokens of a prompt that is tried
_OWN = 0.9  # share of their tokens below which they are not the model's own
_STEP = 32  # of the heads' width
_BYTES_A_TURN = 0.95  # of the size that pruning aims at, since bytes per n-gram vary


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
        name = f"ngram{number or ''}.lm"
        lm.save(folder / name)
        lms.append({"file": name, "order": lm.order, "vocab_size": lm.vocab_size})
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
    used = (*(["heads"] if heads else []), *(["lm"] if lms else []), "text", "target")
    config = DraftConfig("mixture", sources=used)
    predicted = {"gain": choice.gain.to_json(), "tokens_per_call": choice.tokens_per_call}
    DrafterFile(
        config, vocab_size, heads.num_slots if heads else 0, predicted=predicted, lms=lms,
        gates=[one.to_dict() for one in choice.gates],
    ).save(folder / "drafter.json")  # fmt: skip


def build_drafter(
    model: PreTrainedModel, tokenizer: Any, job: BuildJob, watcher: Watcher
) -> BuildResult:
    """Builds a drafter and writes its folder.

    An interrupted build continues with the same arguments: responses, hidden states and heads are
    kept in the folder.

    Args:
        model: the target, in evaluation mode.
        tokenizer: its tokenizer, of transformers.
        job: inputs and options.
        watcher: receives progress: stages "responses", "states", "heads", "costs", "live".

    Raises:
        ValueError: too few prompts, or a model that refuses drafting.
        OSError: a file that cannot be read or written.
        FormatError: a file of another format.
    """
    job.check()
    _check_folder(job.output, model)
    job.kept.mkdir(parents=True, exist_ok=True)
    with locked(job.output):
        ignored, line = job.output / ".gitignore", f"/{job.kept.name}/"
        known = ignored.read_text("utf-8").splitlines() if ignored.exists() else []
        if line not in known:
            write_text(ignored, "\n".join([*known, line, ""]))
        return _build(model, tokenizer, job, watcher)


def _build(model: PreTrainedModel, tokenizer: Any, job: BuildJob, watcher: Watcher) -> BuildResult:
    seconds, last = dict[str, float](), time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal last
        seconds[stage], last = time.perf_counter() - last, time.perf_counter()

    chats, notes = find_usable(tokenizer, job.chats, job.skipped[0], chat=job.chat)
    job.check_count(len(chats))
    chats = [chats[n] for n in np.random.default_rng(0).permutation(len(chats))]
    drafting = _check_drafting(model, tokenizer, [*chats, _GREETING][0], job)
    num_own = job.num_own_prompts
    if job.seconds is not None and (chats or num_own):
        share = min(1.0, make_plan(model, tokenizer, chats, job).count_fitting(job.seconds))
        chats = chats[: max(FEWEST_CHATS, int(share * len(chats)))]
        num_own = min(num_own, max(FEWEST_CHATS, int(share * num_own)))
        lap("probe")
    stops = find_stop_tokens(model, tokenizer)
    own: list[Chat] = []
    if num_own:
        kept = ResponseStore(job.kept / "own_prompts.jsonl", model, "prompts")
        own = write_prompts(
            model, tokenizer, num_own, kept, stop_token_ids=stops, batch_size=job.batch_size,
            watcher=watcher,
        )  # fmt: skip
        chats += own
        lap("prompts")
    states = StateFile(job.kept / "states.bin", model) if job.heads else None
    exchanges, more = _read_responses(model, tokenizer, chats, job, stops, states, watcher)
    notes += more
    lap("responses")
    places = {one.chat for one in exchanges}
    training, fitting, held_out = (
        [n for n, one in enumerate(exchanges) if one.chat in part]
        for part in split_chats(places, range(len(chats) - len(own), len(chats)))
    )
    if not (training and fitting and held_out):
        raise ValueError(
            "build: too few prompts fit into the model's positions; expected shorter ones"
        )
    lm = _train_lm(job, drafting.vocab_size, [exchanges[n].response for n in training])
    lap("LM")
    heads, accuracy = None, None
    candidates: dict[int, Any] = {}
    if states is not None:
        heads, accuracy, candidates = _train_heads(
            model, exchanges, states, training, fitting, held_out, job, watcher
        )
        lap("heads")
    call_seconds = _measure_calls(drafting, job, watcher)
    lap("costs")
    texts = [
        KnownText([*one.prompt, *one.response], len(one.prompt), candidates.get(n))
        for n, one in enumerate(exchanges)
    ]
    sources = [Source("n-gram LM of own responses", lm)]
    sources += map(Source, [f"n-gram LM {path.name}" for path in job.lms], job.given_lms)
    if heads is not None:
        sources.append(Source("heads", None, keep=job.keep_heads))

    decode = None
    if job.costs is None:
        again = min(len(fitting), FITTING) + min(len(held_out), HELD_OUT)
        decode = _decoder(model, heads, (1 + len(sources)) * again, watcher)
    choice = choose_sources(
        drafting.vocab_size, sources, [texts[n] for n in fitting], [texts[n] for n in held_out],
        call_seconds, 0.0 if heads is None else _time_heads(model, heads),
        own_seconds=OWN_SECONDS if job.costs is None else 0.0,
        is_chain=job.costs is not None or drafting.target.is_recurrent,
        decode=decode,
    )  # fmt: skip
    if decode is not None:
        watcher.end()
    lap("choice")
    counts = {
        "conversations": len(chats) + len(job.given),
        "responses": len(training),
        "tokens": sum(len(exchanges[n].response) for n in training),
        "held out": min(len(held_out), HELD_OUT) if job.costs is None else len(held_out),
        "fitting": len(fitting),
    }
    if job.costs is not None:
        of = job.costs.name
        notes.append(f"Expected gains are those of single paths, with the times of {of}.")
    if own:
        notes.append(f"{len(own):,} of the prompts were written by the model itself.")
    if job.chat and not tokenizer.chat_template:
        notes.append("The model has no chat template, so prompts are texts that it continues.")
    notes += describe_repetition([one.response for one in exchanges])
    used = heads if choice.heads else None
    write_folder(model, job, drafting.vocab_size, choice, used)
    live = decode_live(
        model, job.output, [exchanges[n] for n in held_out][: LIVE_PROMPTS],
        stops, used, sum(seconds.values()) * LIVE_SHARE, watcher,
    )  # fmt: skip
    lap("live decoding")
    target = f"{drafting.vocab_size:,} token ids, fingerprint {identify(model)}"
    result = BuildResult(counts, choice, accuracy, live, seconds, notes, target)
    write_text(job.output / "README.md", describe_drafter(result, name_of(model) or "a model"))
    return result


def _decoder(model: PreTrainedModel, heads: Any, count: int, watcher: Watcher) -> Decode:
    """Decodes known texts, of which there are `count` in all: steps of the stage "choice"."""
    watcher.begin("choice", count)

    def decode(
        text: KnownText, lms: Sequence[NGramLM], with_heads: bool, gates: Gates, times: Any
    ) -> ReplayResult:
        known = decode_known(model, text, lms, heads if with_heads else None, gates, times=times)
        watcher.advance()
        return known

    return decode


def _check_folder(folder: Path, model: PreTrainedModel) -> None:
    """Raises ValueError where the folder has a drafter of another model or an earlier version."""
    if old := [name for name in _KEPT if (folder / name).exists()]:
        raise ValueError(
            f"build: {folder} has {', '.join(old)} of an earlier version, which cannot be used any "
            "more and may be private; remove them"
        )
    card, is_built = folder / "README.md", (folder / "drafter.json").exists()
    text = card.read_text("utf-8") if is_built and card.exists() else ""
    known = re.search(r"fingerprint (\w+)", text)
    if known and known[1] != identify(model):
        raise ValueError(
            f"build: {folder} has a drafter of another model (fingerprint {known[1]}); expected a "
            "folder of its own: give another one, or remove this one"
        )


def _read_responses(
    model: PreTrainedModel, tokenizer: Any, chats: Sequence[Chat], job: BuildJob,
    stops: frozenset[int], states: StateFile | None, watcher: Watcher,
) -> tuple[list[Exchange], list[str]]:  # fmt: skip
    """Responses to `chats`, generated or stored, those that the job has, and notes on both."""
    notes, skipped = list[str](), list[Skipped]()
    exchanges = read_responses(
        tokenizer, job.given, chat=job.chat, stop_token_ids=stops,
        max_positions=find_max_positions(model.config.get_text_config()), skipped=skipped,
    )  # fmt: skip
    if problem := find_problem(skipped, len(exchanges)):
        raise ValueError(f"{problem}; leave them out")
    notes += describe_skipped([*job.skipped[1], *skipped], len(exchanges), "responses")
    if job.given and not exchanges:
        raise ValueError(
            f"{', '.join(job.responses)}: no response that fits; expected conversations with the "
            "model's responses"
        )
    if job.given:
        names = ", ".join(Path(name).name for name in job.responses)
        notes.append(f"Responses of {names}: {_own_share(model, exchanges)}.")
    exchanges = [one._replace(chat=one.chat + len(chats)) for one in exchanges]
    if not chats:
        return exchanges, notes
    store = ResponseStore(job.kept / "responses.jsonl", model, f"greedy, stop {sorted(stops)}")
    server = make_server(tokenizer, job, stops)
    generated = collect_responses(
        model, tokenizer, chats, job.max_new_tokens, store, chat=job.chat,
        stop_token_ids=stops or None, batch_size=job.batch_size, server=server,
        keep=None if states is None else states.add, watcher=watcher,
    )  # fmt: skip
    if server is not None:
        notes.append(f"Responses of a server: {_own_share(model, generated)}.")
    if left_out := sum(len(one.prompt_ends()) for one in chats) - len(generated):
        reasons = {} if server is None else dict(server.skipped)
        reasons["longer than the model's positions, or after one that is left out"] = (
            left_out - sum(reasons.values())
        )
        listed = "; ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        notes.append(f"{left_out} prompts are left out: {listed}.")
    return generated + exchanges, notes


@torch.inference_mode()
def _own_share(model: PreTrainedModel, exchanges: Sequence[Exchange]) -> str:
    """How many tokens of responses from elsewhere are the model's own greedy ones."""
    right = total = 0
    for one in exchanges[:_CHECKED]:
        ids = torch.tensor([[*one.prompt, *one.response]], device=device_of(model))
        best = model(ids).logits[0, len(one.prompt) - 1 : -1].argmax(dim=-1)
        right += int((best == ids[0, len(one.prompt) :]).sum())
        total += len(one.response)
    share = right / max(1, total)
    doubt = "" if share >= _OWN else "; greedy responses of this model would have nearly all"
    return f"{share:.0%} of their tokens are the model's own greedy ones{doubt}"


def _train_lm(job: BuildJob, vocab_size: int, responses: list[list[int]]) -> NGramLM:
    """The n-gram LM of responses, pruned to its part of the job's size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmoothingWarning)  # own text is always small
        lm = NGramLM.train(
            responses, job.order, vocab_size=vocab_size, smoothing="modified_kneser_ney",
            unseen="uniform",
        )  # fmt: skip
    path, most = job.kept / "own.lm", math.inf
    if job.max_bytes is not None:
        most = job.max_bytes / (1 + job.heads)
    lm.save(path)
    while path.stat().st_size > most and lm.num_prunable:
        share = _BYTES_A_TURN * most / path.stat().st_size
        lm = lm.prune(prune_to=int(share * lm.num_prunable))
        lm.save(path)
    path.unlink()
    return lm


def _train_heads(
    model: PreTrainedModel, exchanges: list[Exchange], file: StateFile, training: list[int],
    fitting: list[int], held_out: list[int], job: BuildJob, watcher: Watcher,
) -> tuple[VocabularyHeads, list[float], dict[int, Any]]:  # fmt: skip
    """The heads, their held-out accuracy, and their candidates on the other responses."""
    responses, states = [one.response for one in exchanges], file.read(exchanges, watcher)
    options = VocabularyHeadsOptions(epochs=job.epochs)
    if job.max_bytes is not None:
        column = options.num_slots * 3 * states.rows.shape[1] * model.dtype.itemsize
        size = max(_STEP, job.max_bytes // 2 // column // _STEP * _STEP)
        options = replace(options, inner_size=min(size, options.inner_size))
    vocabulary = most_frequent([responses[n] for n in training], options.draft_vocab_size)
    varied = vary_exchanges(model, exchanges, states, training, vocabulary)
    states = file.read([*exchanges, *varied], watcher)
    texts = responses + [one.response for one in varied]
    chosen = [*training, *range(len(exchanges), len(texts))]
    positions = find_positions(states, texts, chosen, options.num_slots)
    own = sum(max(0, len(responses[n]) - 1) for n in training)
    positions.labels[own:, _VARIED_SLOTS:] = -1  # they follow tokens that the target did not choose
    checkpoint = job.kept / "heads.checkpoint"
    heads = train_vocabulary_heads(model, positions, vocabulary, options, watcher, checkpoint)
    accuracy = measure_accuracy(
        model, heads, find_positions(states, responses, held_out, options.num_slots)
    )
    heads.to(dtype=model.dtype).attach(model)
    others = [*fitting, *held_out]
    hidden = torch.cat([states.of(n, len(responses[n])) for n in others])
    exact = torch.tensor([t for n in others for t in responses[n]], device=device_of(model))
    found = []
    with torch.inference_mode():
        for rows, ids in zip(*(torch.split(one, _ROWS) for one in (hidden, exact)), strict=True):
            lattice = heads.lattice(rows.to(device_of(model), model.dtype), ids, _TOP_K)
            found.append((lattice.token_ids.int().cpu(), lattice.scores.float().cpu()))
    ends = np.cumsum([len(responses[n]) for n in others])[:-1]
    split = [np.split(torch.cat(part).numpy(), ends) for part in zip(*found, strict=True)]
    candidates = dict(zip(others, zip(*split, strict=True), strict=True))
    return heads, accuracy, candidates


def _check_drafting(
    model: PreTrainedModel, tokenizer: Any, chat: Chat, job: BuildJob
) -> DraftingModel:
    """Raises ValueError for a model that refuses drafting, before anything is generated."""
    prompt = encode_prompt(tokenizer, next(chat.prompts()), chat=job.chat)
    try:
        drafting = DraftingModel(model)
        drafting.require_causal("build")
        generate(model, prompt[:_CHECKED], max_new_tokens=4)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return drafting


def _measure_calls(drafting: DraftingModel, job: BuildJob, watcher: Watcher) -> Any:
    """(MAX_NODES + 1,) float64, seconds of a call of the target by its draft tokens."""
    if job.given_costs is not None:
        return interpolate_costs(job.given_costs, range(MAX_NODES + 1)) / 1e3
    watcher.begin("costs", COST_ROUNDS + 1)
    costs = measure_costs(drafting, COST_SIZES, COST_ROUNDS, watcher.advance)
    watcher.end()
    return interpolate_costs(costs, range(MAX_NODES + 1)) / 1e3


@torch.inference_mode()
def _time_heads(model: PreTrainedModel, heads: VocabularyHeads) -> float:
    """Median seconds of a call of the heads."""
    hidden = torch.zeros(1, heads.hidden_size, device=device_of(model), dtype=model.dtype)
    exact, times = torch.zeros(1, dtype=torch.int64, device=device_of(model)), []
    for _ in range(20):
        start = time.perf_counter()
        heads.lattice(hidden, exact).scores.cpu()
        times.append(time.perf_counter() - start)
    return float(np.median(times))
