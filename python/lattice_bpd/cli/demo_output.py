"""Prints the demo's results: table, calls of one continuation, drafts rescored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from lattice_bpd.evaluate.demo.run import DemoRun
    from lattice_bpd_kim2024.live.call_tokens import CallTokens

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
