"""Decodes held-out prompts with a demo model by every strategy of the demo's table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.demo.library_text import draw_passages
from lattice_bpd_kim2024.demo.model_folder import DemoModel
from lattice_bpd_kim2024.live.call_tokens import CallTokens, split_by_call
from lattice_bpd_kim2024.live.compare import Comparison, StrategyResult, compare_strategies
from lattice_bpd_kim2024.live.greedy_check import check_greedy
from lattice_bpd_kim2024.live.repairs import Repair, find_repairs
from lattice_bpd_kim2024.replay.strategies import DEMO_SETTINGS
from lattice_bpd_kim2024.statistics import loop_share

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from lattice_bpd_kim2024.live.call_tokens import CallTokens


REPLAYED = "tree"  # the strategy whose calls are shown


@dataclass(frozen=True)
class DemoSize:
    """Numbers of prompts and runs of the demo.

    Attributes:
        prompts: held-out prompts.
        timed_prompts: those of them that speeds are measured on.
        rounds: runs of these, see `compare_strategies`; odd, so that there is a middle one.
    """

    prompts: int = 8
    timed_prompts: int = 2
    rounds: int = 3

    def runs(self) -> int:
        """Decoded prompts, all strategies added up."""
        more = (self.rounds - 1) * min(self.timed_prompts, self.prompts)
        return self.prompts * len(DEMO_SETTINGS) + more * (len(DEMO_SETTINGS) - 1)  # no oracle


FULL_SIZE = DemoSize()
SMOKE_SIZE = DemoSize(prompts=4, timed_prompts=4, rounds=1)


@dataclass
class DemoRun:
    """The results of the demo.

    Attributes:
        demo: the model.
        size: numbers of prompts and runs.
        prompts: token ids of each prompt.
        continuations: the human text that follows each prompt, as long as greedy's output.
        comparison: all strategies; differences of "greedy" are from the target's own `generate`.
        seconds: wall time of each stage.
    """

    demo: DemoModel
    size: DemoSize
    prompts: list[list[int]]
    continuations: list[list[int]]
    comparison: Comparison
    seconds: dict[str, float]

    @property
    def greedy_equals_generate(self) -> bool:
        """Whether greedy's outputs are those of the target's own `generate`."""
        return not self.comparison.results[0].differing

    @property
    def human_loop_share(self) -> float:
        """Share of positions that loop in the human text."""
        return loop_share(self.prompts, self.continuations)

    def result(self, name: str) -> StrategyResult:
        """The results of the setting `name`."""
        return next(result for result in self.comparison.results if result.setting.name == name)

    def example(self) -> tuple[int, list[CallTokens]]:
        """A prompt whose output has no loop, with the tokens of each call for it.

        Of those prompts the one with the median of tokens per call; of all if every output loops.
        """
        result = self.result(REPLAYED)
        chosen = self.comparison.loop_free or list(range(len(self.prompts)))
        chosen = sorted(chosen, key=lambda number: result.stats[number].block_efficiency)
        number = chosen[(len(chosen) - 1) // 2]
        return number, split_by_call(result.outputs[number], result.stats[number].accept_lengths)

    def repairs(self) -> list[Repair]:
        """Two drafts before and after rescoring, from outputs without loops."""
        outputs, loop_free = self.comparison.results[0].outputs, self.comparison.loop_free
        options = self.demo.settings.options("ngram_1best")
        return find_repairs(
            self.demo.model,
            self.demo.lm,
            [self.prompts[number] for number in loop_free],
            [outputs[number] for number in loop_free],
            top_k=options.top_k,
            alpha=options.alpha,
        )

    def to_json(self) -> dict[str, Any]:
        """The figures of results.json; research/kim2024/evaluate.md has the schema."""
        settings, comparison = self.demo.settings, self.comparison
        return {
            "strategies": comparison.to_json(),
            "options": {
                setting.name: {"top_k": settings.top_k}
                if setting.strategy == "oracle"
                else replace(settings.options(setting.name), strategy=setting.strategy).options
                for setting in DEMO_SETTINGS
            },
            "alpha": settings.alpha["p_best_ngram"],
            "top_k": settings.top_k,
            "num_drafts": settings.num_drafts,
            "max_nodes": settings.max_nodes,
            "order": settings.order,
            "num_heads": self.demo.model.num_heads,
            "prompts": len(self.prompts),
            "prompt_length": settings.prompt_length,
            "max_new_tokens": settings.max_new_tokens,
            "timed_prompts": len(comparison.timed),
            "rounds": self.size.rounds,
            "device": str(self.demo.model.device),
            "threads": torch.get_num_threads(),
            "loop_free_prompts": len(comparison.loop_free),
            "loop_share": comparison.loop_share,
            "human_loop_share": self.human_loop_share,
            "greedy_equals_generate": self.greedy_equals_generate,
            "training": settings.training,
            "seconds": self.seconds,
        }


def run_demo(demo: DemoModel, texts: Sequence[str], size: DemoSize, watcher: Watcher) -> DemoRun:
    """Decode prompts from held-out texts with every strategy of DEMO_SETTINGS.

    Args:
        demo: the model.
        texts: files that it was not trained on.
        size: numbers of prompts and runs.
        watcher: notified of the stages "prompts", "decode" and "generate".

    Raises:
        ValueError: the texts are shorter than a prompt with its continuation.
    """
    settings, seconds = demo.settings, dict[str, float]()
    start = time.perf_counter()
    watcher.begin("prompts")
    passages = draw_passages(
        demo.encode(texts),
        size.prompts,
        settings.prompt_length,
        settings.max_new_tokens,
        settings.seed,
    )
    prompts = [prompt for prompt, _ in passages]
    watcher.end()
    start = _lap(seconds, "prompts", start)
    common: dict[str, Any] = {
        "max_new_tokens": settings.max_new_tokens,
        "stop_token_ids": [settings.end_of_text],
    }
    watcher.begin("decode", replace(size, prompts=len(prompts)).runs())
    comparison = compare_strategies(
        demo.model,
        demo.lm,
        prompts,
        settings=DEMO_SETTINGS,
        options={setting.name: settings.options(setting.name) for setting in DEMO_SETTINGS},
        rounds=size.rounds,
        timed_prompts=size.timed_prompts,
        seed=settings.seed,
        on_prompt=lambda setting: watcher.advance(note=setting.name),
        **common,
    )
    watcher.end()
    start = _lap(seconds, "decode", start)
    watcher.begin("generate", len(prompts))
    greedy = comparison.results[0]
    differing = check_greedy(
        demo.model, prompts, greedy.outputs, on_prompt=watcher.advance, **common
    )
    comparison.results[0] = replace(greedy, differing=differing)
    watcher.end()
    _lap(seconds, "generate", start)
    pairs = zip(passages, greedy.outputs, strict=True)
    continuations = [text[: len(output)] for (_, text), output in pairs]
    return DemoRun(demo, size, prompts, continuations, comparison, seconds)


def _lap(seconds: dict[str, float], stage: str, start: float) -> float:
    now = time.perf_counter()
    seconds[stage] = now - start
    return now


ACCEPTED, OWN = "green", "bold yellow"
_CONTEXT = 16  # tokens shown before a draft


def print_run(console: Console, run: DemoRun, *, is_smoke_test: bool = False) -> None:
    """Print all results.

    Args:
        console: of `make_console`; without colors, quotes mark text instead.
        run: the results.
        is_smoke_test: say in the title that the figures are meaningless.
    """
    _print_table(console, run, is_smoke_test)
    number, calls = run.example()
    console.print()
    _print_calls(console, run, number, calls)
    console.print()
    _print_repairs(console, run)


def _print_table(console: Console, run: DemoRun, is_smoke_test: bool) -> None:
    from lattice_bpd_kim2024.live.table import footnotes, render_table

    settings = run.demo.settings
    names = {
        "p": settings.num_drafts, "k": settings.top_k, "n": settings.order,
        "nodes": settings.max_nodes,
    }  # fmt: skip
    title = (
        f"{len(run.prompts)} held-out prompts, {settings.max_new_tokens} new tokens each, "
        f"{run.demo.model.num_heads} heads, k = {settings.top_k}"
    )
    if is_smoke_test:
        title = f"SMOKE TEST, too few prompts for meaningful figures\n{title}"
    console.print(render_table(run.comparison, names, title))
    for line in footnotes(run.comparison):
        console.print(line)
    console.print(
        f"In the human text that follows the same prompts it is {run.human_loop_share:.0%}."
    )
    same = "equal" if run.greedy_equals_generate else "NOT equal"
    console.print(
        f"greedy's outputs are {same} to those of the target's own generate(do_sample=False)."
    )


def _print_calls(console: Console, run: DemoRun, number: int, calls: Sequence[CallTokens]) -> None:
    from rich.text import Text

    plain = _is_plain(console)
    tokens = sum(len(call.accepted) + len(call.own) for call in calls)
    kinds = Text.assemble(
        ("accepted draft tokens", "" if plain else ACCEPTED),
        " + " if plain else ", ",
        ("the target's own token", "" if plain else OWN),
    )
    console.print(
        Text.assemble(
            f"one continuation call by call ({tokens} tokens in {len(calls)} calls): ", kinds
        )
    )
    decoder = _Decoder(run, run.prompts[number])
    console.print(Text(f"  prompt  ...{decoder.tail(_CONTEXT)}", style="dim"))
    for index, call in enumerate(calls, 1):
        count = len(call.accepted) + len(call.own)
        line = Text(f"  call {index:>2}  {count:>2} tokens  ")
        line.append_text(call_text(decoder.next(call.accepted), decoder.next(call.own), plain))
        console.print(line)


def call_text(accepted: str, own: str, plain: bool) -> Text:
    """The text of one call: in two colors, or as 'accepted' + 'own' without them.

    Args:
        accepted: text of the accepted draft tokens; may be empty.
        own: text of the target's own token; may be empty.
        plain: without colors.
    """
    from rich.text import Text

    if plain:
        return Text(f"{accepted!r} + {own!r}")
    return Text.assemble((escape(accepted), ACCEPTED), (escape(own), OWN))


def escape(text: str) -> str:
    """The text on one line, line ends and other control characters as escapes."""
    return repr(text)[1:-1]


def _print_repairs(console: Console, run: DemoRun) -> None:
    from rich.text import Text

    repairs = run.repairs()
    if not repairs:
        console.print("drafts before and after rescoring: every output loops, none is shown")
        return
    console.print("drafts before and after rescoring (| between tokens):")
    plain, decode = _is_plain(console), run.demo.tokenizer.decode

    def draft(title: str, tokens: Sequence[int], accepted: int) -> Text:
        pieces = [escape(decode([token])) for token in tokens]
        kept, rejected = "|".join(pieces[:accepted]), "|".join(pieces[accepted:])
        return Text.assemble(
            f"  {title:<8} ",
            (kept, "" if plain else ACCEPTED),
            " >< " if plain else ("|" if kept and rejected else ""),
            (rejected, "" if plain else "dim"),
            f"  ({accepted} accepted)",
        )

    for repair in repairs:
        console.print(Text(f"  context  ...{escape(decode(repair.context[-_CONTEXT:]))}"))
        console.print(draft("before", repair.before, repair.accepted_before))
        console.print(draft("after", repair.after, repair.accepted_after))
    if plain:
        console.print("  (accepted >< rejected)")


def _is_plain(console: Console) -> bool:
    return console.no_color or console.color_system is None


class _Decoder:
    """Decodes tokens piece by piece, so that characters of several tokens stay whole."""

    def __init__(self, run: DemoRun, prompt: Sequence[int]) -> None:
        self._decode = run.demo.tokenizer.decode
        self._tokens = list(prompt)

    def tail(self, count: int) -> str:
        return escape(self._decode(self._tokens[-count:]))

    def next(self, tokens: Sequence[int]) -> str:
        """The text that these tokens add."""
        before: str = self._decode(self._tokens)
        self._tokens += tokens
        return str(self._decode(self._tokens)[len(before) :])
