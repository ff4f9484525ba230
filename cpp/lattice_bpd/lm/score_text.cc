#include "lattice_bpd/lm/score_text.h"

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

Symbol CheckedSymbol(const BackoffLm& lm, TokenId token_id, std::size_t position) {
  const std::uint32_t vocab_size = lm.vocabulary().vocab_size;
  if (token_id < 0 || static_cast<std::uint32_t>(token_id) >= vocab_size) {
    throw ValueError(StrCat("score: token id ", token_id, " at position ", position,
                            "; expected 0..", vocab_size - 1, " (the LM's vocabulary)"));
  }
  return static_cast<Symbol>(token_id);
}

}  // namespace

std::vector<double> ScoreText(const BackoffLm& lm, Span<TokenId> token_ids, bool bos, bool eos) {
  std::vector<double> log_probs;
  log_probs.reserve(token_ids.size() + 1);
  const bool has_bos =
      !token_ids.empty() && static_cast<Symbol>(token_ids[0]) == lm.vocabulary().bos;
  LmState state = lm.StateOfContext({}, bos && !has_bos);
  for (std::size_t i = 0; i < token_ids.size(); ++i) {
    const LmStep step = lm.Query(state, CheckedSymbol(lm, token_ids[i], i));
    log_probs.push_back(step.TotalLogProb());
    state = step.next;
  }
  if (eos) log_probs.push_back(lm.Query(state, lm.vocabulary().eos).TotalLogProb());
  return log_probs;
}

double LogProb(const BackoffLm& lm, TokenId token_id, Span<TokenId> context, bool bos) {
  const LmState state = lm.StateOfContext(context, bos);
  return lm.Query(state, CheckedSymbol(lm, token_id, context.size())).TotalLogProb();
}

}  // namespace lattice_bpd
