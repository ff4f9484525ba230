"""Checks and timings of decoding on a GPU, in at most ten minutes and without a network.

    scripts/check_gpu.sh                          on CUDA, a Llama of 1 B random weights
    DEVICE=cpu SIZE=tiny scripts/check_gpu.sh     the same code without a GPU, in a minute

    lossless   outputs against the model's own `generate`, in float32 and bfloat16: eager and sdpa
               attention, static KV cache, compiled decoder
    top_k      selection on the device against a stable sort on the host
    speed      tokens/s of greedy decoding, also with a static cache and compiled (whose first run
               compiles), transformers' assisted generation, a draft model and
               draft trees, in a first run too, whose shapes are new (compare with
               TORCH_CUDNN_SDPA_DEPRIORITIZED=1: docs/decoding.md); own time of a step

The weights are random, so acceptance is planned: the first layers decide most of the target's
output and are the draft model, `PlannedHeads` know the greedy output and make mistakes, and the LM
is trained on it. Speeds are for these acceptances, which the results list as tokens per call.
Results are written after each part; what does not fit into the time is listed as skipped. The exit
status is 1 if any output or selection is wrong.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from corpus import ROOT
from llm_lines import COMPILED, why_not_compiled
from machine import describe_machine
from report import print_table, write_json
from transformers import LlamaConfig, LlamaForCausalLM

from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.verify import record_calls
from lattice_bpd_conformance.cases import (
    Case,
    list_quick_cases,
    random_prompts,
)
from lattice_bpd_conformance.check import Checker

SIZES: dict[str, dict[str, int]] = {
    "full": {"vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192,
             "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
    "tiny": {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
             "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
}  # fmt: skip
BATCHES = {"full": (1, 8, 64), "tiny": (1, 3)}
NEW_TOKENS = {"full": 64, "tiny": 24}
PROMPT_TOKENS, SLOTS, TOP_K, MAX_NODES, ROUNDS = 32, 6, 16, 24, 3
COMPILED_CASES, COMPILED_LAYERS = [Case("tree")], 2  # every new shape takes seconds to compile


def build_target(
    size: str, device: str, dtype: torch.dtype, attention: str, layers: int | None = None
) -> Any:
    """A Llama whose first layers decide most of its output, with no end-of-text token."""
    shape = {**SIZES[size], **({} if layers is None else {"num_hidden_layers": layers})}
    config = LlamaConfig(
        **shape, max_position_embeddings=4096, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, attn_implementation=attention,
    )  # fmt: skip
    generator = torch.Generator(device).manual_seed(0)
    with torch.device(device):
        model: Any = LlamaForCausalLM(config)
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim < 2:
                continue
            gain = 1.0 if weight is embedding else weight.shape[-1] ** -0.5
            weight.normal_(0.0, gain, generator=generator)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                first = int(name.split(".")[2]) < draft_layers(size)
                weight.mul_(1.0 if first else 0.1)
        # Mostly another token follows each token, whatever came before.
        order = torch.randperm(len(embedding), generator=generator, device=device)
        model.lm_head.weight[order] += 8.0 / embedding.shape[1] * embedding
    return model.eval().to(dtype)


def draft_layers(size: str) -> int:
    """Layers of the draft model."""
    return max(1, SIZES[size]["num_hidden_layers"] // 8)


def build_draft_model(target: Any, size: str) -> Any:
    """The first layers of a target, with the weights of the target."""
    config = type(target.config)(**{
        **target.config.to_dict(), "num_hidden_layers": draft_layers(size),
        "attn_implementation": target.config._attn_implementation,
    })  # fmt: skip
    with torch.device("meta"):
        draft: Any = LlamaForCausalLM(config)
    draft.model.embed_tokens = target.model.embed_tokens
    draft.model.layers = target.model.layers[: draft_layers(size)]
    draft.model.norm, draft.model.rotary_emb = target.model.norm, target.model.rotary_emb
    draft.lm_head = target.lm_head
    return draft.eval()


class PlannedHeads:
    """Heads that know the output: most often it is the best candidate of a slot, else the next.

    Args:
        texts: token ids of prompts and outputs.
        vocab_size: V.
        device: of the logits.
    """

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int, device: str) -> None:
        self.num_slots, self.vocab_size = SLOTS, vocab_size
        self._texts = [list(text) for text in texts]
        generator = torch.Generator(device).manual_seed(1)
        shape = (SLOTS, vocab_size)
        self._noise = torch.randn(shape, generator=generator, device=device)

    def read_states(self, states: Sequence[Any]) -> torch.Tensor:
        """(B, H, V) float32."""
        rows, slots, tokens, values = [], [], [], []
        for row, state in enumerate(states):
            known = list(state.tokens)
            text = next((t for t in self._texts if t[: len(known)] == known), [])
            for slot, token in enumerate(text[len(known) : len(known) + SLOTS]):
                is_second = (7 * len(known) + 3 * slot) % 5 == 0
                for rank, candidate in enumerate((token, (token + 1) % self.vocab_size)):
                    rows.append(row)
                    slots.append(slot)
                    tokens.append(candidate)
                    values.append(12.0 if (rank == 0) != is_second else 11.0)
        logits = self._noise.expand(len(states), -1, -1).clone()
        if rows:
            device = logits.device
            index = torch.tensor([rows, slots, tokens]).to(device)
            logits[index[0], index[1], index[2]] = torch.tensor(values).to(device)
        return logits


class Times(NamedTuple):
    """Seconds of the first call, whose shapes are new to the kernels, and of later ones."""

    first: float
    later: float

    def speeds(self, tokens: int) -> dict[str, float]:
        """Tokens/s."""
        return {"tokens_per_s": tokens / self.later, "first_tokens_per_s": tokens / self.first}


class OutOfTime(BaseException):  # not an Exception, which a check may report
    """The time of the whole run is over."""


def _stop(*_: Any) -> None:
    raise OutOfTime


class Check:
    """One run.

    Args:
        args: of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.device, self.size, self.out = args.device, args.size, args.out
        self.backend = args.backend or ("inductor" if args.device == "cuda" else "eager")
        self.deadline = time.monotonic() + 60 * args.minutes
        self.parts, self.left_out, self.num_asked = args.parts.split(","), list[str](), 0
        self.failures: list[str] = []
        name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
        self.results: dict[str, Any] = {
            "device": name, "size": self.size, "shape": SIZES[self.size],
            "machine": describe_machine(), "torch_cuda": torch.version.cuda, "skipped": [],
            "failures": self.failures,
        }  # fmt: skip

    def run(self, name: str, part: Callable[[], Any], minutes: float) -> None:
        """Add one part's result, unless it is not asked for or would exceed the time that is left.

        Args:
            name: of the part.
            part: returns what goes into the results.
            minutes: that it probably takes; the part is stopped when the whole time is over.
        """
        if not any(text in name for text in self.parts):
            self.left_out.append(name)
            return
        self.num_asked += 1
        left = (self.deadline - time.monotonic()) / 60
        if left < minutes:
            print(f"check_gpu: {name}: skipped, {left:.1f} minutes are left", flush=True)
            self.results["skipped"].append(name)
        else:
            start = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 60 * left)
            try:
                self.results[name] = part()
            except OutOfTime:
                self.results["skipped"].append(name)
            except Exception as error:  # reported, so that the other parts still run
                self.results[name] = {"error": f"{type(error).__name__}: {error}"}
                self.failures.append(f"{name}: {type(error).__name__}: {error}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            print(f"check_gpu: {name}: {time.monotonic() - start:.0f} s", flush=True)
        write_json(self.out, self.results)

    def check_lossless(self, dtype: torch.dtype, variant: str) -> dict[str, Any]:
        """Verdicts of one dtype and variant: "eager", "sdpa", "compiled", "recorded".

        Only the last one replays calls.
        """
        attention = variant if variant in ("eager", "sdpa") else "sdpa"
        layers = COMPILED_LAYERS if variant == "compiled" else None
        model = build_target(self.size, self.device, dtype, attention, layers)
        cases = list_quick_cases()
        if variant == "compiled":
            cases = COMPILED_CASES
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            torch._dynamo.config.recompile_limit = 64  # calls differ in masks and caches
            model.base_model.compile(dynamic=True, backend=self.backend)
        record_calls(model, on=variant == "recorded")
        checker = Checker(model, random_prompts(model.config.vocab_size), 16)
        checker.reference.texts()  # by the model's default cache
        verdicts = checker.run(cases)
        counts: dict[str, int] = {}
        for verdict in verdicts:
            counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
        failed = [verdict for verdict in verdicts if verdict.failed]
        where = f"lossless, {variant}, {str(dtype).removeprefix('torch.')}"
        self.failures.extend(f"{where}, {v.case.name}: {v.outcome}: {v.detail}" for v in failed)
        details = [v.to_json() for v in verdicts if v.outcome != "equal"]
        output = {"cases": len(cases), **counts, "not_equal": details}
        if variant == "compiled":
            output["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            if output["graphs"] == 0:
                self.failures.append(f"{where}: nothing was compiled")
        return output

    def check_top_k(self) -> list[dict[str, Any]]:
        """Selection on the device; ties are frequent in the 16-bit types."""
        vocab_size, rows = SIZES[self.size]["vocab_size"], 8
        out = []
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            generator = torch.Generator().manual_seed(vocab_size)
            logits = (3 * torch.randn(rows, vocab_size, generator=generator)).to(dtype)
            logits[0, :5] = float("-inf")
            on_device = logits.to(self.device)
            order = torch.sort(logits.float(), dim=1, descending=True, stable=True)
            for k in (1, 16, 64):
                output = select_top_k(on_device, k, log_softmax=False, where="check_gpu")
                equal = bool(
                    (output.token_ids[0] == order.indices[:, :k].numpy()).all()
                    and (output.scores[0] == order.values[:, :k].numpy()).all()
                )
                name = f"{str(dtype).removeprefix('torch.')}, k = {k}"
                if not equal:
                    self.failures.append(f"top_k, {name}: not that of a stable sort")
                times = self.time(
                    lambda k=k, x=on_device: select_top_k(
                        x, k, log_softmax=False, where="check_gpu"
                    )
                )
                out.append({"case": name, "equal": equal, "us": round(1e6 * times.later, 1)})
        return out

    def measure_speed(self, batch: int) -> list[dict[str, Any]]:
        """Tokens/s of one batch size in bfloat16 (CPU: float32), sdpa attention."""
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        target = build_target(self.size, self.device, dtype, "sdpa")
        draft_model = build_draft_model(target, self.size)
        vocab_size, new_tokens = target.config.vocab_size, NEW_TOKENS[self.size]
        generator = torch.Generator().manual_seed(batch)
        prompts = torch.randint(1, vocab_size, (batch, PROMPT_TOKENS), generator=generator)
        inputs = prompts.to(self.device)
        plain = {"attention_mask": torch.ones_like(inputs), "do_sample": False,
                 "max_new_tokens": new_tokens}  # fmt: skip

        def transformers_greedy(**options: Any) -> list[list[int]]:
            output = target.generate(inputs, **plain, **options)
            return [row[PROMPT_TOKENS:] for row in output.tolist()]

        expected = transformers_greedy()
        texts = [p + t for p, t in zip(prompts.tolist(), expected, strict=True)]
        heads = PlannedHeads(texts, vocab_size, self.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few n-grams to estimate discounts from
            lm = NGramLM.train(texts, 3, vocab_size=vocab_size)
        tree = {"top_k": TOP_K, "max_nodes": MAX_NODES}
        methods: dict[str, tuple[str, dict[str, Any]]] = {
            "greedy, our loop": ("greedy", {}),
            "draft model": ("draft_model", {"lm": draft_model, "draft_length": 4}),
            "tree, heads": ("tree", {"heads": heads, **tree}),
            "tree, heads and LM": ("tree", {"heads": heads, "lm": lm, **tree}),
        }
        greedy = self.time(transformers_greedy).speeds(batch * new_tokens)
        rows: list[dict[str, Any]] = [{"method": "greedy, transformers", **greedy}]
        if (reason := why_not_compiled(self.device)) is None:  # its first run compiles
            static = {"cache_implementation": "static"}
            times = self.time(lambda: transformers_greedy(**static))
            row = {"method": COMPILED, "equal_texts": transformers_greedy(**static) == expected}
            rows.append({**row, **times.speeds(batch * new_tokens)})
        else:
            print(f"left out: {COMPILED} ({reason})")
        if batch == 1:  # transformers refuses assisted generation of several texts
            output = transformers_greedy(assistant_model=draft_model)
            times = self.time(lambda: transformers_greedy(assistant_model=draft_model))
            row = {"method": "assisted generation, transformers", "equal_texts": output == expected}
            rows.append({**row, **times.speeds(new_tokens)})
        for is_recorded in (False, True):
            record_calls(target, on=is_recorded)
            for name, (strategy, options) in methods.items():
                figures = self.measure_strategy(
                    target, prompts.tolist(), strategy, options, expected
                )
                rows.append({"method": f"{name}{', recorded' * is_recorded}", **figures})
        for row in rows:
            row["over_greedy"] = round(row["tokens_per_s"] / greedy["tokens_per_s"], 3)
            for key in greedy:
                row[key] = round(row[key], 1)
        head = ["method", "tokens/s", "first run", "over greedy", "tokens a call", "own ms a step"]
        keys = ("method", *greedy, "over_greedy", "tokens_per_call", "own_ms_per_step")
        print_table(f"batch {batch}", head, [[row.get(key) for key in keys] for row in rows])
        return rows

    def measure_strategy(
        self, target: Any, prompts: list[list[int]], strategy: str, options: dict[str, Any],
        expected: list[list[int]],
    ) -> dict[str, Any]:  # fmt: skip
        """Speed without synchronization, then the own time of a step with it."""
        new_tokens = len(expected[0])

        def decode() -> list[Any]:
            results: list[Any] = generate(
                target, prompts, strategy, max_new_tokens=new_tokens, **options
            )
            return results

        times = self.time(decode)
        with model_seconds(target, self.device) as spent:
            start = time.perf_counter()
            results = decode()
            total = time.perf_counter() - start
        stats = [result.stats for result in results]
        models = sum(s.seconds.get(n, 0.0) for s in stats for n in ("heads", "draft_model"))
        steps = max(s.target_calls for s in stats)
        return {
            **times.speeds(len(prompts) * new_tokens),
            "tokens_per_call": round(
                sum(s.tokens for s in stats) / sum(s.target_calls for s in stats), 2
            ),
            "own_ms_per_step": round(1e3 * (total - spent[0] - models) / steps, 3),
            "target_ms_per_step": round(1e3 * spent[0] / steps, 3),
            "equal_texts": sum(
                r.token_ids == e for r, e in zip(results, expected, strict=True)
            ),
        }  # fmt: skip

    def time(self, call: Callable[[], Any]) -> Times:
        """Seconds of a call that warms up, and the median of more."""
        samples = []
        for _ in range(ROUNDS + 1):
            self.synchronize()
            start = time.perf_counter()
            call()
            self.synchronize()
            samples.append(time.perf_counter() - start)
        return Times(samples[0], median(samples[1:]))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()


@contextmanager
def model_seconds(target: Any, device: str) -> Iterator[list[float]]:
    """Seconds from the begin of each call of a target's decoder to the end of its logits.

    Waits for the device at both ends: a GPU's launches return at once.
    """
    spent = [0.0]
    started: list[float] = []

    def wait() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def begin(*_: Any) -> None:
        started.append(wait())

    def end(*_: Any) -> None:
        if started:  # else the draft model, which has the same output embedding
            spent[0] += wait() - started.pop()

    hooks = [
        target.base_model.register_forward_pre_hook(begin),
        target.get_output_embeddings().register_forward_hook(end),
    ]
    try:
        yield spent
    finally:
        for hook in hooks:
            hook.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--minutes", type=float, default=9.0, help="parts that exceed it are left")
    parser.add_argument("--parts", metavar="TEXT,..", default="", help="only those named so")
    parser.add_argument("--backend", help="of torch.compile (default: inductor; on a CPU eager)")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/gpu/DEVICE.json")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            f"check_gpu: torch {torch.__version__} finds no CUDA device; expected one and a build "
            "of torch with CUDA (TORCH_INDEX=.. make setup); DEVICE=cpu SIZE=tiny runs the same "
            "code without one"
        )
    if args.out is None:
        name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
        part = "-parts" if args.parts else ""  # of a whole run nothing is lost
        file = f"{name.lower().replace(' ', '-')}-{args.size}{part}.json"
        args.out = ROOT / "benchmarks" / "results" / "gpu" / file
    signal.signal(signal.SIGALRM, _stop)
    check = Check(args)
    check.run("top_k", check.check_top_k, 0.2)
    for batch in BATCHES[args.size]:
        check.run(f"speed_batch_{batch}", lambda n=batch: check.measure_speed(n), 1.0)
    variants = {"sdpa": 1.0, "recorded": 1.0, "eager": 1.0, "compiled": 1.5}
    for variant, minutes in variants.items():
        for dtype in (torch.float32, torch.bfloat16):
            name = f"lossless_{variant}_{str(dtype).removeprefix('torch.')}"
            check.run(name, lambda d=dtype, v=variant: check.check_lossless(d, v), minutes)
    if check.num_asked == 0:
        expected = ", ".join(check.left_out)
        sys.exit(f"check_gpu: no part is called {args.parts!r}; expected a part of {expected}")
    for failure in check.failures:
        print(f"check_gpu: FAILED: {failure}", file=sys.stderr)
    print(f"check_gpu: {args.out}: written; {len(check.failures)} failures, "
          f"skipped: {', '.join(check.results['skipped']) or 'nothing'}")  # fmt: skip
    sys.exit(1 if check.failures else 0)


if __name__ == "__main__":
    main()
