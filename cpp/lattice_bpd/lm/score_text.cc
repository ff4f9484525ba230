#include "lattice_bpd/lm/score_text.h"

#include <algorithm>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/lm/text_nodes.h"

namespace lattice_bpd {
namespace {

// What the LM has n-grams of.
Symbol CheckedSymbol(const BackoffLm& lm, TokenId token_id, std::size_t position) {
  const std::uint32_t vocab_size = lm.vocabulary().vocab_size;
  if (token_id < 0 || static_cast<std::uint32_t>(token_id) >= vocab_size) {
    throw ValueError(StrCat("score: token id ", token_id, " at position ", position,
                            "; expected 0..", vocab_size - 1, " (the LM's vocabulary)"));
  }
  return lm.vocabulary().ListedOrUnk(static_cast<Symbol>(token_id));
}

// ln P of the symbol at `at` of the block, given those before it.
double LogProbAt(const BackoffLm& lm, const TextNodes& nodes, std::size_t at) {
  const std::uint32_t order = static_cast<std::uint32_t>(lm.order());
  // Suffix closure: the first length without a node is the end.
  std::uint32_t length = 1;
  while (length < order && nodes.Ending(at, length + 1) != kNoNode) ++length;
  double total = lm.levels()[length - 1].LogProb(nodes.Ending(at, length));
  std::uint32_t known = length - 1;  // symbols of history
  while (known + 1 < order && nodes.EndingBefore(at, known + 1) != kNoNode) ++known;
  for (; known >= length; --known) {
    total += lm.levels()[known - 1].Backoff(nodes.EndingBefore(at, known));
  }
  return total;
}

}  // namespace

std::vector<double> ScoreText(const BackoffLm& lm, Span<TokenId> token_ids, bool bos, bool eos) {
  const bool has_bos =
      !token_ids.empty() && static_cast<Symbol>(token_ids[0]) == lm.vocabulary().bos;
  std::vector<Symbol> symbols;
  symbols.reserve(token_ids.size() + 2);
  if (bos && !has_bos) symbols.push_back(lm.vocabulary().bos);
  const std::size_t first = symbols.size();
  for (std::size_t i = 0; i < token_ids.size(); ++i) {
    symbols.push_back(CheckedSymbol(lm, token_ids[i], i));
  }
  if (eos) symbols.push_back(lm.vocabulary().eos);

  std::vector<double> log_probs;
  log_probs.reserve(symbols.size());
  TextNodes nodes(lm);
  InterruptCounter interrupts;
  for (std::size_t begin = 0; begin < symbols.size(); begin += kTextBlock) {
    interrupts.Count(kTextBlock);
    const std::size_t count = std::min(kTextBlock, symbols.size() - begin);
    nodes.LookUp(Span<Symbol>(symbols).Slice(begin, symbols.size()), count);
    for (std::size_t i = begin == 0 ? first : 0; i < count; ++i) {
      log_probs.push_back(LogProbAt(lm, nodes, i));
    }
  }
  return log_probs;
}

double LogProb(const BackoffLm& lm, TokenId token_id, Span<TokenId> context, bool bos) {
  const LmState state = lm.StateOfContext(context, bos);
  return lm.Query(state, CheckedSymbol(lm, token_id, context.size())).TotalLogProb();
}

std::vector<double> LogProbs(const BackoffLm& lm, Span<TokenId> token_ids,
                             Span<std::int64_t> offsets, Span<TokenId> candidates, bool bos) {
  const std::size_t batch = offsets.empty() ? 0 : offsets.size() - 1;
  bool fit = batch == 0 ? candidates.empty() : candidates.size() % batch == 0;
  fit = fit && !offsets.empty() && offsets[0] == 0 &&
        offsets[batch] == static_cast<std::int64_t>(token_ids.size());
  for (std::size_t i = 0; fit && i < batch; ++i) fit = offsets[i] <= offsets[i + 1];
  if (!fit) {
    throw ValueError(StrCat("score: ", batch, " contexts do not fit ", candidates.size(),
                            " candidates and ", token_ids.size(),
                            " tokens; expected as many candidates for each context"));
  }
  std::vector<double> log_probs;
  log_probs.reserve(candidates.size());
  InterruptCounter interrupts;
  const std::size_t width = batch == 0 ? 0 : candidates.size() / batch;
  for (std::size_t i = 0; i < batch; ++i) {
    interrupts.Count(width);
    const auto begin = static_cast<std::size_t>(offsets[i]);
    const auto end = static_cast<std::size_t>(offsets[i + 1]);
    const LmState state = lm.StateOfContext(token_ids.Slice(begin, end), bos);
    for (std::size_t j = i * width; j < (i + 1) * width; ++j) {
      if (candidates[j] < 0) CheckedSymbol(lm, candidates[j], end - begin);  // throws
      const Symbol symbol = lm.vocabulary().SymbolOf(candidates[j]);
      log_probs.push_back(lm.Query(state, symbol).TotalLogProb());
    }
  }
  return log_probs;
}

}  // namespace lattice_bpd
