"""Writes what the engine tests need: target, drafter and the results of this library's own loop.

    python integrations/vllm/tests/prepare.py FOLDER

Runs in the library's own environment, not in vLLM's. FOLDER gets

    target/         stories260K as a transformers checkpoint, heads of attention widened to 32
    drafter/        trained draft heads, the 4-gram and a drafter.json
    block/          a block drafter with random weights, likewise
    block_pairs/    another one with a selector (DFlash2), which scores transitions
    medusa/         untrained Medusa heads in Medusa's own format
    expected.json   prompts, outputs, and calls of the target by draft form
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples"))

from stories260k_parts import QUICK, Prepared, prepare  # noqa: E402

from lattice_bpd import DraftConfig  # noqa: E402
from lattice_bpd.cli.progress import ConsoleWatcher, make_console  # noqa: E402
from lattice_bpd.decode import generate  # noqa: E402
from lattice_bpd.decode.drafter_file import DrafterFile  # noqa: E402
from lattice_bpd_drafters.block_drafter import BlockDrafter  # noqa: E402
from lattice_bpd_drafters.config import BlockDrafterConfig, SelectorConfig  # noqa: E402
from lattice_bpd_drafters.extension import DRAFTER_FOLDER  # noqa: E402
from lattice_bpd_drafters.medusa import save_medusa  # noqa: E402
from lattice_bpd_drafters.medusa_heads import MedusaHeads  # noqa: E402

DATA = ROOT.parent / "shared" / "data"
HEAD_SIZE = 32  # the smallest that vLLM's attention takes on the CPU
PROMPTS, NEW_TOKENS = 32, 64
CHAIN = DraftConfig("chain", alpha=0.8, temperature=2.0)
STRATEGIES: dict[str, DraftConfig] = {
    "chain": CHAIN,
    "best": DraftConfig("ngram", alpha=1.0),
    "argmax": DraftConfig("bpd"),
}
SIZES = BlockDrafterConfig(
    hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16, intermediate_size=172,
    vocab_size=512, target_hidden_size=64, hidden_layers=(0, 2, 4), block_size=9, mask_token_id=0,
)  # fmt: skip
# Of the candidates of random drafters the 4-gram chooses those that the target accepts.
CANDIDATES = 128
BLOCK = replace(CHAIN, top_k=CANDIDATES)
BLOCK_SIZES = {
    "block": SIZES, "block_pairs": replace(SIZES, scorer=SelectorConfig(8, CANDIDATES))
}  # fmt: skip


def widen(model: LlamaForCausalLM, size: int) -> LlamaForCausalLM:
    """The same function with attention heads of a larger size.

    Pair j of the d/2 rotary pairs becomes pair j * size/d, which has the same frequency; the other
    dimensions are zero. Queries are scaled, since scores are divided by the root of the size.
    """
    config = LlamaConfig(**{**model.config.to_dict(), "head_dim": size})
    config.architectures = ["LlamaForCausalLM"]
    wide = LlamaForCausalLM(config)
    old = model.config.hidden_size // model.config.num_attention_heads
    pairs = torch.arange(old // 2) * (size // old)
    rotary = torch.cat([pairs, pairs + size // 2])
    weights = wide.state_dict()
    for name, weight in model.state_dict().items():
        kind = name.split(".")[-2]
        if kind not in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[name] = weight
            continue
        rows = rotary if kind in ("q_proj", "k_proj") else torch.arange(old)
        source = weight.T if kind == "o_proj" else weight  # (heads * d, width)
        scale = (size / old) ** 0.5 if kind == "q_proj" else 1.0
        heads = len(source) // old
        target = source.new_zeros(heads, size, source.shape[1])
        target[:, rows] = source.view(heads, old, -1) * scale
        target = target.view(heads * size, -1)
        weights[name] = target.T.contiguous() if kind == "o_proj" else target
    wide.load_state_dict(weights)
    return wide.eval()


def random_drafter(config: BlockDrafterConfig, target: LlamaForCausalLM) -> BlockDrafter:
    """An untrained block drafter of the target, always the same."""
    torch.manual_seed(0)
    drafter = BlockDrafter(config).eval()
    for weight in drafter.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2)
    drafter.attach(target)
    return drafter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, default=DATA / "stories260K")
    parser.add_argument("--text", type=Path, default=DATA / "tinystories" / "tinystories_10k.txt")
    parser.add_argument("--work", type=Path, default=ROOT / "demo-out" / "stories260k")
    args = parser.parse_args()
    torch.set_num_threads(1)
    made = prepare(args, QUICK, "quick", ConsoleWatcher(make_console(), {}))
    target = widen(made.base, HEAD_SIZE)
    heads = made.model.heads
    folder = args.folder
    (folder / "drafter").mkdir(parents=True, exist_ok=True)
    target.save_pretrained(folder / "target")
    write_tokenizer(args.model / "tok512.model", folder / "target")
    heads.save_pretrained(folder / "drafter")
    save_options(made, folder / "drafter", CHAIN)
    prompts = made.found.test[:PROMPTS]
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "stop_token_ids": []}
    outputs = [generate(target, prompt, "greedy", **options).token_ids for prompt in prompts]
    calls = {}
    for name, drafter in STRATEGIES.items():
        results = [
            generate(target, prompt, drafter, heads=heads, lm=made.lm, **options)
            for prompt in prompts
        ]
        if [result.token_ids for result in results] != outputs:
            raise AssertionError(f"{name}: outputs differ from greedy decoding")
        calls[name] = sum(result.stats.target_calls for result in results)
    medusa = MedusaHeads.from_target(target, heads.num_slots)
    save_medusa(medusa, folder / "medusa")
    sources: dict[str, tuple[Any, DraftConfig]] = {"medusa": (medusa, CHAIN)}
    for name, sizes in BLOCK_SIZES.items():
        block = random_drafter(sizes, target)
        block.save_pretrained(folder / name / DRAFTER_FOLDER)
        sources[name] = (block, BLOCK)
    for name, (others, config) in sources.items():
        save_options(made, folder / name, config)
        results = [
            generate(target, prompt, config, heads=others, lm=made.lm, **options)
            for prompt in prompts
        ]
        if [result.token_ids for result in results] != outputs:
            raise AssertionError(f"{name}: outputs differ from greedy decoding")
        calls[name] = sum(result.stats.target_calls for result in results)
    for name, count in calls.items():
        print(f"{name}: {PROMPTS * NEW_TOKENS / count:.3f} tokens per call")
    expected = {"prompts": prompts, "outputs": outputs, "calls": calls, "new_tokens": NEW_TOKENS}
    (folder / "expected.json").write_text(json.dumps(expected))


def save_options(made: Prepared, folder: Path, config: DraftConfig) -> None:
    """The LM and drafter.json of a folder."""
    made.lm.save(folder / "stories.lm")
    lm = {"name": "4gram", "file": "stories.lm", "order": 4, "vocab_size": 512}
    DrafterFile(config, 512, 8, lm).save(folder / "drafter.json")


def write_tokenizer(model: Path, folder: Path) -> None:
    """The model's SentencePiece tokenizer in the format of `tokenizers`."""
    pieces = SentencePieceProcessor(model_file=str(model))
    vocab = {pieces.id_to_piece(number): number for number in range(len(pieces))}
    merges = [
        (number, piece[:cut], piece[cut:])
        for piece, number in vocab.items()
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    bpe = models.BPE(
        vocab, [(left, right) for _, left, right in sorted(merges)],
        unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )  # fmt: skip
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    text = "Once upon a time, there was a little girl. She saw a caf\u00e9!"
    if fast.encode(text) != [1, *pieces.encode(text)]:
        raise AssertionError("the converted tokenizer encodes a text otherwise than the original")
    fast.save_pretrained(folder)


if __name__ == "__main__":
    main()
