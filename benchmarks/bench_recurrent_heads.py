"""Heads that read their own drafts, beside those of `build`: accuracy, tokens per call, tokens/s.

    python benchmarks/bench_recurrent_heads.py train FOLDER/build_files -o cell.pt
    python benchmarks/bench_recurrent_heads.py decode FOLDER/build_files --heads cell.pt
    python benchmarks/bench_recurrent_heads.py decode FOLDER/build_files --heads cell.pt --costs cpu

FOLDER is what `lattice-bpd build MODEL --prompts .. --heads -o FOLDER` made; its kept states are
read. The heads are one cell of 4.7 M parameters beside the target's output embedding:

    s_0 = h                                                   the target's hidden state
    s_j = s_(j-1) + W2 silu(W1 [norm s_(j-1), norm e(j-1), norm h] + b_j)
    logits of slot j = rows of the draft vocabulary . s_j

where e(0) embeds the exact token, e(j) draft token j. It is trained as `build` trains its heads (on
the target's distributions, AdamW, batches of 512), on the true tokens and its own states. Of each
slot the 16 best candidates are kept, and the best of them are read after their best predecessor: a
lattice whose pairs have conditional log probabilities.

`decode` decodes the yardstick's test half with the mixture of text, n-gram LM (of the same
responses), the target's predictions and these heads: "none", a cell, or what `train --kind build`
trains on the same positions. Gates are fitted while 60 other responses are decoded. With --costs
sizes of trees and tokens/s are those of a cost curve. The heads' times of "cpu" were measured with
`PackedHeads` of the same sizes; those of "gpu" and "7b" are assumptions.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llm_prompts import make_prompt, read_rows
from report import write_json
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from lattice_bpd import NGramLM
from lattice_bpd.build.call_costs import interpolate_costs
from lattice_bpd.build.known_texts import decode_known
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.replay import KnownText
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models import VocabularyHeads
from lattice_bpd.train.head_states import StateFile
from lattice_bpd.train.responses.collect import Exchange
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.train.vocabulary_heads import (
    Positions,
    VocabularyHeadsOptions,
    _autocast,
    _cross_entropy,
    _find_distributions,
    find_positions,
    most_frequent,
    train_vocabulary_heads,
)
from lattice_bpd.verify import use_cpu_kernels

MODEL = Path.home() / ".cache/lattice-bpd/SmolLM2-135M-Instruct"
SLOTS, INNER, VOCAB, TOP_K, BATCH, ROWS, TOKENS = 5, 2048, 8192, 16, 512, 2048, 96
RATE, DECAY, WARMUP = 1.5e-3, 0.3, 30
FITTED = 60  # responses that fit the gates, in two rounds
# Milliseconds of calls by draft tokens, of the loop besides, and of heads by kind. "cpu" is SmolLM2
# on two cores; the heads of "gpu" (replayed on an H200) and "7b" (which computes without waiting)
# are assumed to take their share of the target's weights and five steps instead of one.
COSTS: dict[str, tuple[dict[int, float], float, dict[str, float]]] = {
    "cpu": ({0: 22, 7: 25, 15: 28, 31: 35, 63: 49}, 0.3, {"build": 1.2, "cell": 2.5}),
    "gpu": ({0: 3.1, 7: 3.8, 15: 3.7, 31: 4.2, 63: 5.2}, 0.4, {"build": 0.2, "cell": 0.7}),
    "7b": ({0: 100, 63: 100}, 0.5, {"build": 4.0, "cell": 19.0}),
}


class Cell(nn.Module):
    """See the module.

    Args:
        token_ids: (K,) ints, the draft vocabulary.
        model: the target, whose embeddings it reads.
    """

    def __init__(self, token_ids: Sequence[int], model: Any) -> None:
        super().__init__()
        self.token_ids = torch.as_tensor(token_ids)
        self._embedding = model.get_input_embeddings().weight.detach()
        self._rows = model.get_output_embeddings().weight.detach()[self.token_ids]
        self.width = int(self._rows.shape[1])
        self.w1, self.w2 = nn.Linear(3 * self.width, INNER), nn.Linear(INNER, self.width)
        self.slot_bias = nn.Parameter(torch.zeros(SLOTS, INNER))
        nn.init.zeros_(self.w2.weight)  # each slot starts as a copy of the target's prediction
        nn.init.zeros_(self.w2.bias)

    def output_rows(self) -> tuple[Tensor, None]:
        """(K, D) rows of the target's output embedding, without a bias."""
        return self._rows, None

    def step(self, states: Tensor, tokens: Tensor, hidden: Tensor, slot: int) -> Tensor:
        """(N, D) states of a slot, from those before it, (N,) tokens and (N, D) h."""
        embedded = F.embedding(tokens, self._embedding).float()
        parts = [F.rms_norm(part, (self.width,)) for part in (states, embedded, hidden)]
        bias = self.slot_bias[min(slot, SLOTS - 1)]
        change: Tensor = self.w2(F.silu(self.w1(torch.cat(parts, dim=-1)) + bias))
        return states + change

    def draft_states(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """(N, H, D) states after (N, H) tokens: the exact one and the true ones after it."""
        states, found = hidden, []
        for slot in range(tokens.shape[1]):
            states = self.step(states, tokens[:, slot], hidden, slot)
            found.append(states)
        return torch.stack(found, dim=1)

    def log_probs(self, states: Tensor) -> Tensor:
        """(N, K) natural logs over the draft vocabulary."""
        return (states.to(self._rows.dtype) @ self._rows.T).float().log_softmax(dim=-1)


class CellLattice:
    """The candidates of a cell, as heads of a decoding loop.

    Args:
        cell: trained.
        beam: candidates of a slot that are read.
        num_slots: H; slots beyond those that were trained are as the last one.
    """

    def __init__(self, cell: Cell, beam: int, num_slots: int) -> None:
        self.cell, self.beam, self.num_slots = cell, beam, num_slots

    @torch.inference_mode()
    def __call__(self, hidden: Tensor, exact_tokens: Tensor) -> LatticeInput:
        """Candidates with log probabilities, and what the one before adds to them."""
        rows = [self._read(*pair) for pair in zip(hidden.float(), exact_tokens, strict=True)]
        ids, unary, pairs = (torch.stack(part) for part in zip(*rows, strict=True))
        start = torch.zeros_like(unary[:, 0])
        return LatticeInput(
            ids, unary, start, pairs, normalization="local", are_log_probs=True
        )  # fmt: skip

    def _read(self, hidden: Tensor, exact: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cell, hidden = self.cell, hidden[None]
        states = cell.step(hidden, exact[None], hidden, 0)
        logs, weights, read = cell.log_probs(states), torch.ones(1), torch.arange(0)
        ids, unary, pairs = list[Tensor](), list[Tensor](), list[Tensor]()
        for slot in range(self.num_slots):
            joint = weights[:, None] * logs.exp()
            mean = joint.sum(dim=0) / weights.sum()
            best = mean.topk(TOP_K).indices
            ids.append(cell.token_ids[best])
            unary.append(mean[best].clamp_min(1e-12).log())
            if slot:
                added = torch.zeros(TOP_K, TOP_K)  # those that are not read have the mean
                added[read] = logs[:, best] - unary[-1]
                pairs.append(added)
            if slot + 1 == self.num_slots:
                break
            weights, before = joint[:, best].max(dim=0)
            weights, read = weights.topk(self.beam)
            states = cell.step(
                states[before[read]], ids[-1][read], hidden.expand(self.beam, -1), slot + 1
            )
            logs = cell.log_probs(states)
        return torch.stack(ids), torch.stack(unary), torch.stack(pairs)


class Data:
    """Prompts, responses and their states, and which are for what."""

    def __init__(self, folder: Path, model: Any) -> None:
        lines = (folder / "responses.jsonl").read_text().splitlines()
        pairs = [(one["prompt"], one["response"]) for one in map(json.loads, lines)]
        self.exchanges = [Exchange(n, *pair) for n, pair in enumerate(pairs)]
        self.responses = [one.response for one in self.exchanges]
        self.states = StateFile(folder / "states.bin", model).read(self.exchanges)
        order = np.random.default_rng(1).permutation(len(pairs)).tolist()
        count = len(order) // 20
        self.held_out, self.fitting = order[:count], order[count : 2 * count]
        self.training = order[2 * count :]

    def positions(self, chosen: Sequence[int]) -> Positions:
        """Those of some responses."""
        return find_positions(self.states, self.responses, chosen, SLOTS)


def take(positions: Positions, batch: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D) states, and (N, H) tokens that slots read."""
    tokens = torch.cat([positions.exact_tokens[:, None], positions.labels[:, :-1]], dim=1)
    return positions.states[positions.rows[batch]].float(), tokens[batch].clamp(min=0)


def train_cell(model: Any, data: Data, epochs: float) -> Cell:
    """A cell trained on the target's distributions."""
    torch.manual_seed(0)
    vocabulary = most_frequent([data.responses[n] for n in data.training], VOCAB)
    cell, positions = Cell(vocabulary, model), data.positions(data.training)
    is_known = torch.zeros(len(cell._embedding) + 1, dtype=torch.bool)  # the last for -1
    is_known[cell.token_ids] = True
    distributions = _find_distributions(cell.output_rows(), positions.states)
    count, start = len(positions.rows), time.perf_counter()
    steps = math.ceil(epochs * count / BATCH)
    adamw = torch.optim.AdamW(cell.parameters(), RATE, (0.9, 0.95), weight_decay=DECAY, fused=True)
    order = torch.cat([torch.randperm(count) for _ in range(math.ceil(epochs) + 1)])
    for step in range(steps):
        rate = min(1.0, (step + 1) / WARMUP) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        adamw.param_groups[0]["lr"] = RATE * rate
        batch = order[step * BATCH : (step + 1) * BATCH]
        labels = positions.rows[batch, None] + torch.arange(1, SLOTS + 1)
        labels[~is_known[positions.labels[batch]]] = -1
        with _autocast(model):
            states = cell.draft_states(*take(positions, batch)).float()
        flat = states.detach().flatten(0, 1)
        loss, gradients = _cross_entropy(cell, flat, labels.flatten(), *distributions)  # type: ignore[arg-type]
        adamw.zero_grad()
        states.backward((SLOTS * gradients).view_as(states))  # type: ignore[no-untyped-call]
        adamw.step()
        if (step + 1) % 100 == 0:
            left = (steps - step - 1) * (time.perf_counter() - start) / (step + 1)
            print(f"  {step + 1:,} of {steps:,}, {left:.0f} s left, loss {loss:.3f}", flush=True)
    return cell.eval()


@torch.inference_mode()
def describe_accuracy(model: Any, heads: Any, positions: Positions) -> str:
    """By slot, by slot where all before were right, and the mean of a chain."""
    right, rows = [], heads.output_rows()[0]
    for batch in torch.arange(len(positions.rows)).split(ROWS):
        hidden, tokens = take(positions, batch)
        if isinstance(heads, VocabularyHeads):
            tokens = tokens[:, 0]
        with _autocast(model):
            states = heads.draft_states(hidden, tokens)
        best = heads.token_ids[(states.to(rows.dtype) @ rows.T).argmax(dim=-1)]
        right.append(best == positions.labels[batch])
    hits, real = torch.cat(right), positions.labels >= 0
    before, given, chain = torch.ones(len(hits), dtype=torch.bool), [], 1.0
    for slot in range(SLOTS):
        given.append(float(hits[before & real[:, slot], slot].float().mean()))
        before &= hits[:, slot]
        chain += float(before.float().mean())
    by_slot = hits.sum(dim=0) / real.sum(dim=0)
    first, second = (", ".join(f"{x:.3f}" for x in part) for part in (by_slot.tolist(), given))
    return f"by slot {first}; where all before were right {second}; chain of {SLOTS}: {chain:.3f}"


def run_train(args: argparse.Namespace) -> None:
    """Train heads, and print their accuracy on held-out responses."""
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).eval()
    data, start = Data(args.files, model), time.perf_counter()
    if args.kind == "cell":
        heads: Any = train_cell(model, data, args.epochs)
    else:
        vocabulary = most_frequent([data.responses[n] for n in data.training], VOCAB)
        options = VocabularyHeadsOptions(epochs=args.epochs)
        heads = train_vocabulary_heads(model, data.positions(data.training), vocabulary, options)
    seconds, held_out = time.perf_counter() - start, data.positions(data.held_out)
    print(f"{args.kind}, {seconds:.0f} s: {describe_accuracy(model, heads, held_out)}")
    ids = heads.token_ids.tolist()
    torch.save({"kind": args.kind, "token_ids": ids, "weights": heads.state_dict()}, args.output)


def load_trained(path: Path, model: Any, args: argparse.Namespace) -> tuple[str, Any]:
    """The kind of heads that `train` wrote, and these."""
    content = torch.load(path)
    if content["kind"] == "cell":
        cell = Cell(content["token_ids"], model)
        cell.load_state_dict(content["weights"])
        return "cell", CellLattice(cell.eval(), args.beam, args.slots)
    width = model.get_output_embeddings().weight.shape
    heads = VocabularyHeads(content["token_ids"], width[1], width[0])
    heads.load_state_dict(content["weights"])
    heads = heads.to(torch.bfloat16).eval()
    heads.attach(model)
    return "build", heads


def run_decode(args: argparse.Namespace) -> None:
    """Decode the yardstick's test half."""
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).eval()
    use_cpu_kernels(model)
    tokenizer, data = AutoTokenizer.from_pretrained(args.model), Data(args.files, model)
    kind, heads = "none", None
    if args.heads != "none":
        kind, heads = load_trained(Path(args.heads), model, args)
    training = [data.responses[n] for n in data.training]
    vocab_size = model.config.vocab_size
    lm = NGramLM.train(training, 5, vocab_size=vocab_size, smoothing="witten_bell")
    times = None
    if args.costs:
        calls, own, of_heads = COSTS[args.costs]
        times = (interpolate_costs(calls, range(65)) + own + of_heads.get(kind, 0.0)) / 1e3
    gates = Gates.default((*["heads"] * (heads is not None), "lm", "text", "target"))
    start = gates.weights
    for first in (0, FITTED // 2):
        results = [
            decode_known(model, KnownText([*one.prompt, *one.response], len(one.prompt)),
                         [lm], heads, gates)
            for one in (data.exchanges[n] for n in data.fitting[first : first + FITTED // 2])
        ]  # fmt: skip
        gates = gates.fit([one.examples for one in results], start)

    def answer(token_ids: list[int]) -> list[int]:
        return next(generate_responses(model, [token_ids], TOKENS)).token_ids

    prompts = [make_prompt(row, tokenizer, answer).token_ids for row in read_rows("test")]
    found = {one.prompt: one.token_ids for one in generate_responses(model, prompts, TOKENS)}
    runs = []
    for number, prompt in enumerate(prompts):
        text = KnownText([*prompt, *found[number]], len(prompt))
        result = decode_known(model, text, [lm], heads, gates, max_nodes=args.nodes, times=times)
        seconds = None if times is None else float(times[result.sizes].sum() + times[0])
        runs.append({"tokens": result.tokens, "calls": result.calls, "seconds": seconds})
    tokens, calls = (sum(run[name] for run in runs) for name in ("tokens", "calls"))
    settings = {"kind": kind, "costs": args.costs, "nodes": args.nodes}
    line = f"{kind}, {args.costs or f'{args.nodes} nodes'}: {tokens / calls:.3f} tokens per call"
    if times is not None:
        line += f", {tokens / sum(run['seconds'] for run in runs):.2f} tokens/s"
    print(line)
    if args.json:
        write_json(args.json, {**settings, "runs": runs})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(required=True)
    train, decode = actions.add_parser("train"), actions.add_parser("decode")
    for action, run in ((train, run_train), (decode, run_decode)):
        action.add_argument("files", type=Path, metavar="BUILD_FILES")
        action.add_argument("--model", type=Path, default=MODEL)
        action.set_defaults(run=run)
    train.add_argument("--kind", choices=("cell", "build"), default="cell")
    train.add_argument("--epochs", type=float, default=4.0)
    train.add_argument("-o", "--output", type=Path, required=True)
    decode.add_argument("--heads", default="none", metavar="FILE", help='or "none"')
    decode.add_argument("--nodes", type=int, default=16, help="of a tree (default 16)")
    decode.add_argument("--costs", choices=COSTS, help="choose sizes by cost")
    decode.add_argument(
        "--beam", type=int, default=TOP_K, help="candidates of a slot that are read"
    )
    decode.add_argument("--slots", type=int, default=SLOTS, help=f"of the cell (default {SLOTS})")
    decode.add_argument("--json", type=Path, metavar="FILE", help="figures of each prompt")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
