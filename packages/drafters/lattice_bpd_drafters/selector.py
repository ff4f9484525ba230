"""The low-rank selector of DFlash2: scores of adjacent candidates, gated by the slot's state.

The candidates are the best of each slot, selected on the logits' device.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.head_files import HeadFiles
from lattice_bpd_drafters.config import SelectorConfig

if TYPE_CHECKING:
    from lattice_bpd.decode.state.sequence import DecodeState


class SlotCandidates(NamedTuple):
    """Candidates of the slots after B anchors.

    Attributes:
        anchors: (B,) int64, the exact tokens before slot 0.
        states: (B, H, D) float, which predict the slots; (B, 1, D) where all slots read one.
        token_ids: (B, H, k) int64, best first, ties by ascending id.
        draft_ids: (B, H, k) int64, their indices into the logits; token_ids, unless the drafter
            has a vocabulary of its own.
        logits: (B, H, k) float32.
        log_total: (B, H, 1) float32, logsumexp of all logits of a slot.
    """

    anchors: Tensor
    states: Tensor
    token_ids: Tensor
    draft_ids: Tensor
    logits: Tensor
    log_total: Tensor


def candidates_of(logits: Tensor, states: Tensor, anchors: Tensor, top_k: int) -> SlotCandidates:
    """The best candidates of logits (B, H, V) over the target's vocabulary; see SlotCandidates."""
    logits = logits.float()
    ids = top_ids(logits, top_k)
    total = logits.logsumexp(dim=-1, keepdim=True)
    return SlotCandidates(anchors, states, ids, ids, logits.gather(-1, ids), total)


def top_ids(logits: Tensor, top_k: int) -> Tensor:
    """(.., k) int64 indices of the greatest logits (.., V), best first.

    Equal logits are ordered by ascending index; which of them is the k-th is the device's choice.
    """
    ids = logits.topk(top_k, sorted=False).indices.sort(dim=-1).values
    order = logits.gather(-1, ids).argsort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order)


def greedy_walk(start: Tensor, transitions: Tensor) -> Tensor:
    """The best candidate of each slot after the one before it.

    Args:
        start: (B, k) float.
        transitions: (B, H-1, k, k) float, see LatticeInput.

    Returns:
        (B, H) int64, indices of candidates.
    """
    path = [start.argmax(dim=-1)]
    rows = torch.arange(len(start), device=start.device)
    for slot in range(transitions.shape[1]):
        path.append(transitions[rows, slot, path[-1]].argmax(dim=-1))
    return torch.stack(path, dim=1)


_SIZES = {"rank": 1, "top_k": 1, "vocab_size": 1, "hidden_size": 1, "num_slots": 0}
SELECTOR_FILES = HeadFiles("candidate_selector", _SIZES)


class CandidateSelector(nn.Module):
    """Scores of candidate b of slot j after candidate a of slot j - 1.

        S[j](a, b) = U[j](b) + <A[a] * gate[j], B[b]>,    gate[j] = W h[j] (+ c[j])

    U is the raw logit, A and B are the codebooks of predecessors and successors, h[j] is the slot's
    state. Slot 0 follows the anchor. Each row of S is a distribution over the k candidates by
    softmax. With B = 0, as it starts, the scores are those of the slots alone.

    Args:
        config: rank and candidates.
        vocab_size: V of the target.
        hidden_size: D, width of h.
        num_slots: H, for a vector c[j] of each slot, initially 1: for heads that all read one h, so
            that the gates of the slots can differ. None: no c, as in DFlash2.

    Source: DFlash2, as its servers implement it (vLLM `qwen3_dflash2.py`).
    """

    def __init__(
        self,
        config: SelectorConfig,
        vocab_size: int,
        hidden_size: int,
        *,
        num_slots: int | None = None,
    ) -> None:
        super().__init__()
        config.check()
        self.config, self.num_slots = config, num_slots
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.predecessor_codebook = nn.Parameter(0.02 * torch.randn(vocab_size, config.rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, config.rank))
        self.hidden_projection = nn.Linear(hidden_size, config.rank, bias=False)
        ones = None if num_slots is None else nn.Parameter(torch.ones(num_slots, config.rank))
        self.slot_gates: nn.Parameter | None = ones

    def check_fit(
        self, vocab_size: int | None, hidden_size: int, num_slots: int | None, where: str
    ) -> None:
        """Raise ValueError unless the selector is for slots of these sizes.

        Args:
            vocab_size: V of the target.
            hidden_size: D of the states that predict the slots.
            num_slots: H where the slots share one state, else None.
            where: the caller's name, for the error message.
        """
        expected = (vocab_size, hidden_size, num_slots)
        found = (self.vocab_size, self.hidden_size, self.num_slots)
        if found != expected:
            raise ValueError(
                f"{where}: the selector has vocab_size, hidden_size and num_slots {found}; "
                f"expected {expected}; train it on these heads"
            )

    def gates(self, states: Tensor) -> Tensor:
        """(.., H, r) float32 of states (.., H, D), or with c of one state for all slots."""
        weight: Tensor = self.hidden_projection.weight
        gates = F.linear(states.to(weight.dtype), weight).float()
        if self.slot_gates is not None:
            gates = gates + self.slot_gates.float()
        return gates

    def pair_scores(self, previous: Tensor, gates: Tensor, token_ids: Tensor) -> Tensor:
        """(.., a, k) float32, without U.

        Args:
            previous: (.., a) int64, tokens of the slot before.
            gates: (.., r) float32.
            token_ids: (.., k) int64, candidates.
        """
        before = self.predecessor_codebook[previous].float() * gates.unsqueeze(-2)
        scores: Tensor = before @ self.successor_codebook[token_ids].float().transpose(-1, -2)
        return scores

    def forward(self, slots: SlotCandidates) -> LatticeInput:
        """The lattice of B blocks, locally normalized; see LatticeInput.

        With a vector c[j] of each slot there may be fewer slots than vectors: the first ones.
        """
        ids, unary = slots.token_ids, slots.logits
        gates = self.gates(slots.states)[:, : ids.shape[1]]
        start = self.pair_scores(slots.anchors[:, None], gates[:, 0], ids[:, 0]).squeeze(1)
        pairs = self.pair_scores(ids[:, :-1], gates[:, 1:], ids[:, 1:])
        return LatticeInput(
            ids, unary, start + unary[:, 0], pairs + unary[:, 1:, None],
            unary="included", normalization="local",
        )  # fmt: skip

    def lattice_of_heads(self, logits: Tensor, hidden: Tensor, anchors: Tensor) -> LatticeInput:
        """The lattice of heads that all read one state.

        Args:
            logits: (B, H, V) float, of the heads.
            hidden: (B, D) float, the states that they read.
            anchors: (B,) int64, the exact tokens before slot 0.
        """
        slots = candidates_of(logits, hidden.unsqueeze(1), anchors, self.config.top_k)
        return self.forward(slots)

    def row_scores(self, slots: SlotCandidates, previous: Tensor) -> Tensor:
        """The rows of S after given tokens, with gradients.

        Args:
            slots: of B blocks.
            previous: (B, H) int64, the token before each slot.

        Returns:
            (B, H, k) float32.
        """
        gates = self.gates(slots.states)
        rows = self.pair_scores(previous.unsqueeze(-1), gates, slots.token_ids)
        return rows.squeeze(-2) + slots.logits

    def save_pretrained(self, directory: str | Path) -> None:
        """Write candidate_selector.safetensors and candidate_selector.json; see `head_files`.

        Raises:
            OSError: the directory cannot be written.
        """
        sizes = {
            "rank": self.config.rank, "top_k": self.config.top_k, "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size, "num_slots": self.num_slots or 0,
        }  # fmt: skip
        SELECTOR_FILES.write(Path(directory), sizes, self)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> CandidateSelector:
        """Read what `save_pretrained` wrote, on the CPU.

        Raises:
            FormatError: a file is missing, cut, altered or of another format version.
        """
        directory = Path(directory)
        sizes = SELECTOR_FILES.read_config(directory)
        config = SelectorConfig(sizes["rank"], sizes["top_k"])
        return SELECTOR_FILES.read_heads(
            directory,
            lambda: cls(
                config, sizes["vocab_size"], sizes["hidden_size"],
                num_slots=sizes["num_slots"] or None,
            ),
        ).eval()  # fmt: skip


class SelectorHeads(nn.Module):
    """Heads on the target's last hidden state, then a selector: a lattice with transition scores.

    Args:
        heads: BlockwiseHeads, Medusa's or another head source.
        selector: trained on them.

    Raises:
        ValueError: a drafter that reads more than a hidden state, or a selector of other sizes.
    """

    def __init__(self, heads: Any, selector: CandidateSelector) -> None:
        super().__init__()
        if hasattr(heads, "as_draft_heads"):
            raise ValueError(
                f"SelectorHeads: the heads are a {type(heads).__name__}; expected heads on one "
                "hidden state; a BlockDrafter takes a selector by drafter.use_selector(selector)"
            )
        width = getattr(heads, "hidden_size", selector.hidden_size)
        selector.check_fit(selector.vocab_size, width, heads.num_slots, "SelectorHeads")
        self.heads, self.selector = heads, selector.eval()
        self.num_slots: int | None = heads.num_slots
        self._model: tuple[BlockwiseLM, ...] = ()  # a tuple, so that it is no submodule

    def as_draft_heads(self, target: Any) -> SelectorHeads:
        """These heads, on a target and its device.

        Raises:
            ValueError: heads or a selector of another vocabulary or width.
        """
        model = BlockwiseLM(target.base, heads=self.heads)
        width = int(model.output_embedding.weight.shape[1])
        self.selector.check_fit(model.vocab_size, width, model.num_slots, "SelectorHeads")
        self.selector.to(model.device)
        self._model = (model,)
        return self

    @torch.no_grad()
    def read_states(self, states: Sequence[DecodeState]) -> LatticeInput:
        """See DraftHeads."""
        hidden = torch.stack([state.hidden for state in states])
        exact = torch.tensor([state.tokens[-1] for state in states], device=hidden.device)
        logits = self._model[0].head_logits(hidden, exact)
        return self.selector.lattice_of_heads(logits, hidden, exact)
