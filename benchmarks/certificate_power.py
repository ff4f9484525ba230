"""Plants faults in verifying calls, and counts those that certificates catch, and tokens alone.

    python benchmarks/certificate_power.py MODEL                 # a folder of transformers
    python benchmarks/certificate_power.py --dtype float32 llama # a tiny random model of that type

Each fault is planted in this library while texts are decoded with drafts that are partly right. Its
size is the largest change that it makes to a logit, over the noise of the model's own calls (99 %
quantile); of a token that is selected wrongly, the margin over the noise of margins. The last row,
without a fault, counts false alarms. Prints Markdown.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from lattice_bpd.decode import Certificate, Drafter, decode
from lattice_bpd.decode.certificate.certificate import MarginSelector
from lattice_bpd.decode.state.text_rules import TextRules
from lattice_bpd.verify import PrefixTree, row_buffers, rows, verification
from lattice_bpd.verify.target import CausalLMTarget
from lattice_bpd_conformance.cases import Case, find_class, random_prompts
from lattice_bpd_conformance.check import Checker

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
from tiny_models import make_tiny_model

_QUESTIONS = (
    "Describe Paris in two sentences.",
    "Write a Python function that reverses a list.",
    "List three colors of the sunset, and explain why the sky is blue.",
)
SIZES = ((0.0, 1.0), (1.0, 2.5), (2.5, 5.0), (5.0, float("inf")))


@dataclass(frozen=True)
class Fault:
    """A fault, and the calls in which it has an effect.

    Attributes:
        name: what is wrong.
        plant: plants it as long as the context is entered; takes the noise of a logit.
        layout: verification layout.
        batch_size: texts decoded together.
        settings: of the case of `check`.
    """

    name: str
    plant: Callable[[float], AbstractContextManager[Any]]
    layout: str = "tree"
    batch_size: int = 1
    settings: str = ""


@dataclass
class Outcome:
    """What happened to a fault.

    Attributes:
        name: of the fault.
        sizes: of its effect on each text, in multiples of the noise.
        caught: for each text, whether its certificate says "different".
        checked: whether the tokens of three texts differ by more than ties; None: not run.
    """

    name: str
    sizes: list[float] = field(default_factory=list)
    caught: list[bool] = field(default_factory=list)
    checked: bool | None = None


class HalfRight(Drafter):
    """Two drafts, of which the second continues the greedy output and errs at every third call."""

    def __init__(self, output: Sequence[int], prompt_length: int, vocab_size: int) -> None:
        self.output, self.start, self.vocab_size = list(output), prompt_length, vocab_size

    def propose(self, states: Sequence[Any]) -> list[PrefixTree | None]:
        """See Drafter."""
        return [self._draft(state) for state in states]

    def _draft(self, state: Any) -> PrefixTree | None:
        done = len(state.tokens) - self.start
        right = self.output[done : done + min(5, state.num_slots)]
        if not right:
            return None
        wrong = [(token + 1) % self.vocab_size for token in right]
        if done % 3 == 2:
            right[len(right) // 2 :] = wrong[len(right) // 2 :]
        return PrefixTree.from_drafts(state.tokens[-1], [wrong, right])


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """A function or method replaced by what `make` builds around it."""
    return mock.patch.object(owner, name, make(getattr(owner, name)))


def _in_calls(**changes: Callable[[Any, int], Any]) -> Callable[[float], Any]:
    """Change inputs of verifying calls by name, or the "output"; given are value and tokens T."""

    def make(right: Any) -> Any:
        def call(self: Any, input_ids: Tensor, cache: Any, **inputs: Any) -> Any:
            size = input_ids.shape[1]
            for name, change in changes.items():
                if inputs.get(name) is not None:
                    inputs[name] = change(inputs[name].clone(), size)
            output = right(self, input_ids, cache, **inputs)
            return changes["output"](output, size) if "output" in changes else output

        return call

    return lambda _: _replace(CausalLMTarget, "__call__", make)


def _mask(change: Callable[[Tensor, int, float], None]) -> Callable[[float], Any]:
    """Change a tree's mask (B, 1, T, P + T) in place; given are the mask, T and "hidden"."""

    def changed(mask: Tensor, size: int) -> Tensor:
        change(mask, size, torch.finfo(mask.dtype).min)
        return mask

    return _in_calls(attention_mask=changed)


def _sees_sibling(mask: Tensor, size: int, _: float) -> None:
    for node in range(2, size):
        mask[..., node, node - 1 - size] = 0.0


def _misses_parent(mask: Tensor, size: int, hidden: float) -> None:
    for node in range(1, size):
        visible = (mask[0, 0, node, :] == 0.0).nonzero()[:, 0]
        mask[..., node, visible[-2]] = hidden


def _has_wrong_parent(mask: Tensor, size: int, _: float) -> None:
    for node in range(size - 1, 1, -1):
        mask[..., node, -size:-1] = mask[..., node - 1, -size:-1]
        mask[..., node, node - size] = 0.0


def _is_shifted(mask: Tensor, size: int, _: float) -> None:
    mask[..., -size:] = mask[..., -size:].roll(1, dims=-1)


def _hides(index: Callable[[int], int]) -> Callable[[Tensor, int, float], None]:
    def change(mask: Tensor, size: int, hidden: float) -> None:
        mask[..., index(mask.shape[-1] - size)] = hidden

    return change


def _shows_all(mask: Tensor, size: int, _: float) -> None:
    mask[..., :-size] = 0.0


def _by_index(positions: Tensor, size: int) -> Tensor:
    return positions[:, :1] + torch.arange(size)


def _later(first: int) -> Callable[[Tensor, int], Tensor]:
    def change(positions: Tensor, _: int) -> Tensor:
        positions[:, first:] += 1
        return positions

    return change


def _with_logits(change: Callable[[Tensor, Any], Tensor]) -> Callable[[float], Any]:
    return _in_calls(output=lambda output, _: output._replace(logits=change(output.logits, output)))


def _one_logit(times: float) -> Callable[[float], Any]:
    """One logit of every call raised by a multiple of the noise."""

    def plant(noise: float) -> AbstractContextManager[Any]:
        def change(logits: Tensor, _: Any) -> Tensor:
            logits = logits.clone()
            logits[:, 0, 7] += times * noise
            return logits

        planted: AbstractContextManager[Any] = _with_logits(change)(noise)
        return planted

    return plant


def _every_logit(times: float) -> Callable[[float], Any]:
    """Noise of up to about a multiple of the model's own, on all logits."""

    def plant(noise: float) -> AbstractContextManager[Any]:
        generator = torch.Generator().manual_seed(0)

        def change(logits: Tensor, _: Any) -> Tensor:
            added = torch.randn(logits.shape, generator=generator) * noise * times / 4
            return (logits.float() + added).to(logits.dtype)

        planted: AbstractContextManager[Any] = _with_logits(change)(noise)
        return planted

    return plant


@contextmanager
def _last_layer_skipped(_: float) -> Iterator[None]:
    def make(right: Any) -> Any:
        def call(self: Any, *arguments: Any, **inputs: Any) -> Any:
            inner = next(m for m in self.base.modules() if hasattr(m, "layers"))
            whole = inner.layers
            inner.layers = whole[:-1]
            try:
                return right(self, *arguments, **inputs)
            finally:
                inner.layers = whole

        return call

    with _replace(CausalLMTarget, "__call__", make):
        yield


def _scaled(factor: float) -> Callable[[float], Any]:
    return _with_logits(lambda logits, _: logits * factor)


def _choosing(pick: Callable[[Any, Tensor, Any, int], int]) -> Callable[[float], Any]:
    """Another token than the argmax."""

    def make(right: Any) -> Any:
        def choose(self: Any, logits: Tensor, candidates: Any) -> int:
            return pick(self, logits, candidates, right(self, logits, candidates))

        return choose

    return lambda _: _replace(MarginSelector, "choose", make)


def _second_below(lead: float) -> Callable[[Any, Tensor, Any, int], int]:
    def pick(_: Any, logits: Tensor, __: Any, best: int) -> int:
        top = logits.float().topk(2)
        other = next(token for token in top.indices.tolist() if token != best)
        return other if float(top.values[0] - top.values[1]) < lead else best

    return pick


def _unchecked(_: Any, __: Tensor, candidates: Any, best: int) -> int:
    return candidates.token_ids[-1] if len(candidates.token_ids) and candidates.depth > 1 else best


def _moves(change: Callable[..., Any]) -> Callable[[float], Any]:
    return lambda _: _replace(row_buffers.Stack, "move", lambda right: change(right))


def _from_next(right: Any) -> Any:
    def move(stack: Any, starts: Any, sources: Any) -> None:
        right(stack, starts, [[max(0, source - 1) for source in row] for row in sources])

    return move


def _keeps_other_row(_: float) -> AbstractContextManager[Any]:
    def make(right: Any) -> Any:
        return lambda self, kept, counts: right(self, [max(0, row - 1) for row in kept], counts)

    return _replace(rows.Rows, "keep_rows", make)


def _texts_end_in_padding(_: float) -> AbstractContextManager[Any]:
    def make(right: Any) -> Any:
        return lambda self, *arguments, ends=None, **rest: right(self, *arguments, **rest)  # noqa: ARG005

    return _replace(CausalLMTarget, "read_prompts", make)


def _window_is_short(_: float) -> AbstractContextManager[Any]:
    def make(right: Any) -> Any:
        def mask(target: Any, *arguments: Any) -> Any:
            other = mock.Mock(wraps=target, device=target.device, dtype=target.dtype)
            other.sliding_window = target.sliding_window and target.sliding_window - 1
            return right(other, *arguments)

        return mask

    return _replace(verification, "mask_attention", make)


def _processors_are_skipped(_: float) -> AbstractContextManager[Any]:
    return mock.patch.object(TextRules, "is_plain", True)


FAULTS = [
    Fault("mask: a node sees its sibling", _mask(_sees_sibling)),
    Fault("mask: a node misses its parent", _mask(_misses_parent)),
    Fault("mask: wrong parent", _mask(_has_wrong_parent)),
    Fault("mask: off by one column", _mask(_is_shifted)),
    Fault("mask: the first token is hidden", _mask(_hides(lambda _: 0))),
    Fault("mask: a token in the middle is hidden", _mask(_hides(lambda width: width // 2))),
    Fault("positions: off by one after the exact token", _in_calls(position_ids=_later(1))),
    Fault("positions: off by one in every call", _in_calls(position_ids=_later(0))),
    Fault("positions: index in the tree, not depth", _in_calls(position_ids=_by_index)),
    Fault("cache: accepted nodes are not moved", _moves(lambda _: lambda *__: None)),
    Fault("cache: accepted nodes moved from one row before", _moves(_from_next)),
    Fault("cache: another draft's row is kept", _keeps_other_row, "rows"),
    Fault("batch: the first token is that after the padding", _texts_end_in_padding, "rows", 2),
    Fault("batch: what is beyond a text's end is visible", _mask(_shows_all), "tree", 2),
    Fault("window: its last token is missing", _window_is_short),
    Fault("model: the last layer is skipped", _last_layer_skipped),
    Fault("logits: of the node before",
          _with_logits(lambda logits, _: logits.roll(1, dims=1))),
    Fault("logits: 0.5 % too large", _scaled(1.005)),
    Fault("logits: 2 % too large", _scaled(1.02)),
    Fault("logits: 10 % too large", _scaled(1.1)),
    *(Fault(f"logits: one off by {times:g} noise", _one_logit(times)) for times in (1, 2, 3, 4)),
    *(Fault(f"logits: all off by about {times:g} noise", _every_logit(times))
      for times in (0.5, 1, 2)),
    Fault("selection: an unchecked draft token", _choosing(_unchecked)),
    Fault("selection: the second best below a lead of 0.5", _choosing(_second_below(0.5))),
    Fault("selection: the second best below a lead of 2", _choosing(_second_below(2.0))),
    Fault("processors are skipped", _processors_are_skipped, settings="penalty"),
    Fault("none", lambda _: nullcontext()),
    Fault("none, rows", lambda _: nullcontext(), "rows"),
    Fault("none, batch", lambda _: nullcontext(), "tree", 2),
]  # fmt: skip


class Power:
    """Plants faults in the decoding of a model.

    Args:
        model: of `transformers`.
        prompts: token ids.
        tokens: decoded after each.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        self.model, self.prompts, self.tokens = model, [list(p) for p in prompts], tokens
        self.outputs = [self._greedy(prompt) for prompt in self.prompts]
        self.checker = Checker(model, self.prompts, min(tokens, 24))
        certificates = self._decode(Fault("none", lambda _: nullcontext()))
        self.noise = statistics.median(given.noise.logits or given.noise.unit
                                       for given in certificates)  # fmt: skip

    def _greedy(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        output = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
            max_new_tokens=self.tokens, min_new_tokens=self.tokens,
        )  # fmt: skip
        return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    def _decode(self, fault: Fault) -> list[Certificate]:
        vocab_size = int(self.model.get_output_embeddings().weight.shape[0])
        certificates = []
        for start in range(len(self.prompts) - fault.batch_size + 1):
            prompts = self.prompts[start : start + fault.batch_size]
            outputs = self.outputs[start : start + fault.batch_size]
            drafters = [
                HalfRight(output, len(prompt), vocab_size)
                for prompt, output in zip(prompts, outputs, strict=True)
            ]
            results = decode(
                self.model, prompts, drafters, max_new_tokens=self.tokens, layout=fault.layout,
                certificate="report",
            )  # fmt: skip
            certificates += [result.certificate for result in results]
        return certificates

    def measure(self, fault: Fault, *, check: bool = True) -> Outcome:
        """Decode all texts with a fault, and check a case."""
        outcome = Outcome(fault.name)
        # What the model can do was found before; with a fault its probes could say otherwise.
        trees = mock.patch.object(CausalLMTarget, "refuses_tree", return_value=None)
        with trees, fault.plant(self.noise):
            certificates = [] if fault.settings else self._decode(fault)
            if check:
                case = Case("tree", 3, fault.layout, settings=fault.settings)
                outcome.checked = self.checker.check(case).failed
        for given in certificates:
            noise = given.noise
            margins = [-one.plain_margin for one in given.differing]
            outcome.sizes.append(
                max(
                    given.difference / max(noise.logits, noise.unit),
                    max(margins, default=0.0) / max(noise.margins, noise.unit),
                )
            )
            outcome.caught.append(given.verdict == "different")
        return outcome


def print_line(one: Outcome) -> None:
    """The line of a fault."""
    sizes = "-" if not one.sizes else f"{min(one.sizes):.1f} to {max(one.sizes):.1f}"
    caught = "-" if not one.sizes else f"{sum(one.caught)} of {len(one.caught)}"
    checked = {None: "-", True: "caught", False: "not"}[one.checked]
    print(f"| {one.name} | {sizes} | {caught} | {checked} |", flush=True)


def print_sizes(outcomes: Sequence[Outcome]) -> None:
    """How many texts are caught, by the size of the effect."""
    print("\n| size of the effect / noise | texts | caught |\n|---|---|---|")
    pairs = [
        pair for one in outcomes if not one.name.startswith("none")
        for pair in zip(one.sizes, one.caught, strict=True)
    ]  # fmt: skip
    for low, high in SIZES:
        caught = [is_caught for size, is_caught in pairs if low <= size < high]
        print(f"| {low:g} to {high:g} | {len(caught)} | {sum(caught)} |")


def load(name: str, dtype: str) -> tuple[Any, list[list[int]]]:
    """A model and prompts: of a folder, or tiny and random."""
    if not Path(name).exists():
        config = CONFIG_MAPPING[name]()
        model = make_tiny_model(find_class(config), config).to(getattr(torch, dtype))
        return model, random_prompts(model.config.vocab_size)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(name)
    chats = [[{"role": "user", "content": question}] for question in _QUESTIONS]
    return model, [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        for chat in chats
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="a folder, or a model type")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--only", default="", help="faults whose name matches")
    args = parser.parse_args()
    power = Power(*load(args.model, args.dtype), args.tokens)
    print("| fault | largest effect / noise | certificates | tokens alone |\n|---|---|---|---|")
    outcomes = []
    for fault in FAULTS:
        if re.search(args.only, fault.name):
            outcomes.append(power.measure(fault))
            print_line(outcomes[-1])
    print_sizes(outcomes)


if __name__ == "__main__":
    main()
