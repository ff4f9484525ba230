#include "lattice_bpd/lm/context_ngram.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

// How far a token moves the weights: they remember about ten tokens that histories match.
constexpr double kRate = 0.1;

// Without a static LM the cache must do better than the heads, which are sure of about so much;
// to do better than a uniform distribution is no merit.
constexpr double kHeadsProb = 0.25;

// Weights stay where one more match can still raise them, and where a miss costs little.
constexpr double kSmallestWeight = 1e-3;
constexpr double kLargestWeight = 0.95;

std::uint32_t CheckedVocabSize(std::int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size > std::numeric_limits<TokenId>::max()) {
    throw ValueError(StrCat("ContextNGram: vocab_size is ", vocab_size, "; expected 1..",
                            std::numeric_limits<TokenId>::max()));
  }
  return static_cast<std::uint32_t>(vocab_size);
}

int CheckedOrder(int order) {
  if (order < 1 || order > kMaxOrder) {
    throw ValueError(StrCat("ContextNGram: order is ", order, "; expected 1..", kMaxOrder));
  }
  return order;
}

std::size_t CheckedMaxTokens(std::int64_t max_tokens) {
  if (max_tokens < static_cast<std::int64_t>(kLeastContextTokens) ||
      max_tokens > static_cast<std::int64_t>(kMostContextTokens)) {
    throw ValueError(StrCat("ContextNGram: max_tokens is ", max_tokens, "; expected ",
                            kLeastContextTokens, "..", kMostContextTokens));
  }
  return static_cast<std::size_t>(max_tokens);
}

}  // namespace

ContextNgram::ContextNgram(std::int64_t vocab_size, int order, std::int64_t max_tokens)
    : vocab_size_(CheckedVocabSize(vocab_size)),
      max_tokens_(CheckedMaxTokens(max_tokens)),
      trie_(CheckedOrder(order)) {
  ResetWeights();
}

void ContextNgram::ResetWeights() {
  std::fill(std::begin(weights_), std::end(weights_), kFirstWeight);
}

void ContextNgram::Clear() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  trie_.Clear();
  ResetWeights();
}

std::size_t ContextNgram::num_tokens() const {
  const auto lock = LockForReading();
  return trie_.text().size();
}

std::vector<TokenId> ContextNgram::text() const {
  const auto lock = LockForReading();
  return {trie_.text().begin(), trie_.text().end()};
}

void ContextNgram::Restore(Span<TokenId> tokens, const std::vector<double>& weights) {
  CheckTokens(tokens, "restore");
  if (tokens.size() > max_tokens_) {
    throw ValueError(StrCat("ContextNGram: restore has ", tokens.size(),
                            " tokens; expected at most ", max_tokens_));
  }
  const bool in_range = std::all_of(weights.begin(), weights.end(),
                                    [](double weight) { return weight >= 0.0 && weight <= 1.0; });
  if (weights.size() != static_cast<std::size_t>(order() - 1) || !in_range) {
    throw ValueError(StrCat("ContextNGram: restore has ", weights.size(), " weights; expected ",
                            order() - 1, " in 0..1"));
  }
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  trie_.Clear();
  for (const TokenId token : tokens) trie_.Append(static_cast<Symbol>(token));
  ResetWeights();
  std::copy(weights.begin(), weights.end(), weights_);
}

std::vector<double> ContextNgram::weights() const {
  const auto lock = LockForReading();
  return {weights_, weights_ + order() - 1};
}

bool ContextNgram::IsActive(bool has_lm) const {
  const double least = has_lm ? kLeastWeight : kLeastWeightAlone;
  const double* end = weights_ + order() - 1;
  return std::any_of(weights_, end, [least](double weight) { return weight >= least; });
}

void ContextNgram::CheckLm(const BackoffLm* lm) const {
  if (lm == nullptr || MayShareIds(lm->vocabulary().vocab_size, vocab_size_)) return;
  throw ValueError(StrCat("the cache has a vocabulary of ", vocab_size_, " tokens, the LM one of ",
                          lm->vocabulary().vocab_size,
                          "; make the ContextNGram with the LM's vocab_size"));
}

void ContextNgram::CheckTokens(Span<TokenId> tokens, const char* where) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && static_cast<std::uint32_t>(tokens[i]) < vocab_size_) continue;
    throw ValueError(StrCat("ContextNGram: ", where, " has token id ", tokens[i], " at position ",
                            i, "; expected 0..", vocab_size_ - 1, " (a vocabulary of ", vocab_size_,
                            ")"));
  }
}

// The state after the text so far.
LmState ContextNgram::StateOfLm(const BackoffLm& lm, bool bos) const {
  static_assert(kLeastContextTokens >= kMaxOrder,
                "or a truncated text would be mistaken for a whole one");
  const std::deque<Symbol>& text = trie_.text();
  const std::size_t size = std::min<std::size_t>(text.size(), kMaxOrder);
  TokenId last[kMaxOrder];
  std::copy(text.end() - static_cast<std::ptrdiff_t>(size), text.end(), last);
  return lm.StateOfContext({last, size}, bos);
}

void ContextNgram::Update(Span<TokenId> tokens, const BackoffLm* lm, bool bos) {
  CheckLm(lm);
  CheckTokens(tokens, "update");
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  LmState state;
  if (lm != nullptr) state = StateOfLm(*lm, bos);
  for (const TokenId token : tokens) {
    const auto word = static_cast<Symbol>(token);
    double static_prob = kHeadsProb;
    if (lm != nullptr) {
      const LmStep step = lm->Query(state, lm->vocabulary().SymbolOf(token));
      static_prob = std::exp(step.TotalLogProb());
      state = step.next;
    }
    AdjustWeights(trie_.StateOfText(), word, static_prob);
    if (trie_.text().size() == max_tokens_) trie_.RemoveFirst();
    trie_.Append(word);
  }
}

// A token is written by the longest history with its share, else by the next shorter one, and so
// on, at last by the static LM. `reached` is the posterior probability that it was none of the
// longer ones, `stopped` that it was this one if so. A history that does not write the token may
// be one that predicts nothing, with probability 1 - weight, or one that predicts it too rarely.
void ContextNgram::AdjustWeights(const ContextState& state, Symbol word, double static_prob) {
  double prob[kMaxOrder] = {static_prob};
  double share[kMaxOrder], own[kMaxOrder];
  for (std::uint32_t m = 1; m <= state.length; ++m) {
    const std::uint32_t node = state.nodes[m - 1];
    const std::uint32_t child = trie_.Find(node, word);
    share[m] = ShareOf(node, m);
    own[m] = child == kNoNode ? 0.0 : share[m] * ProbOf(child);
    prob[m] = (1.0 - share[m]) * prob[m - 1] + own[m];
  }
  double reached = 1.0;
  for (std::uint32_t m = state.length; m > 0; --m) {
    double& weight = weights_[m - 1];
    const double stopped = prob[m] > 0.0 ? std::min(own[m] / prob[m], 1.0) : 0.0;
    const double silent = (weight - share[m]) / (1.0 - share[m]);
    const double speaks = stopped + (1.0 - stopped) * silent;
    weight += kRate * reached * (speaks - weight);
    weight = std::min(std::max(weight, kSmallestWeight), kLargestWeight);
    reached *= 1.0 - stopped;
  }
}

double ContextNgram::LogProb(TokenId token_id, Span<TokenId> context, const BackoffLm* lm,
                             bool bos) const {
  CheckLm(lm);
  CheckTokens({&token_id, 1}, "log_prob: token_id");
  CheckTokens(context, "log_prob: context");
  const auto word = static_cast<Symbol>(token_id);
  double log_prob = -std::log(static_cast<double>(vocab_size_));
  if (lm != nullptr) {
    const Symbol symbol = lm->vocabulary().SymbolOf(token_id);
    log_prob = lm->Query(lm->StateOfContext(context, bos), symbol).TotalLogProb();
  }
  const auto lock = LockForReading();
  if (!IsActive(lm != nullptr)) return log_prob;
  const ContextState state = trie_.StateOf(context);
  double kept = 1.0;  // of the static LM's share
  double cached = 0.0;
  for (std::uint32_t m = 1; m <= state.length; ++m) {
    const std::uint32_t child = trie_.Find(state.nodes[m - 1], word);
    const double share = ShareOf(state.nodes[m - 1], m);
    kept *= 1.0 - share;
    cached = (1.0 - share) * cached + (child == kNoNode ? 0.0 : share * ProbOf(child));
  }
  // In this form a static probability that is too small for a double does no harm.
  if (cached == 0.0) return log_prob + std::log(kept);
  return std::log(kept * std::exp(log_prob) + cached);
}

}  // namespace lattice_bpd
