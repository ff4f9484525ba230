// A cache LM: n-grams of the prompt and the output so far, mixed into a static LM (Kuhn and De
// Mori 1990). With g_1, g_2, .. the suffixes of history h that occur in the text with a successor,
// g_m of m tokens, m below the order:
//
//   P_0(w | h) = P_static(w | h)             1 / vocab_size without a static LM
//   P_m(w | h) = (1 - l_m) P_{m-1}(w | h) + l_m c(g_m w) / c(g_m)
//   l_m        = weight_m * c(g_m) / (c(g_m) + d(g_m))
//
// c counts in the text, d(g) is the number of different successors: the share is that of Witten
// and Bell (1991), times a weight for each length of history that follows how well the cache does.
// The weights are those of an online EM algorithm with exponential forgetting (Cappe and Moulines
// 2009): each token moves the weight of a length towards the posterior probability that histories
// of this length have something to say. While the largest weight is below kLeastWeight (without a
// static LM, where every count matters, kLeastWeightAlone) the cache counts for nothing:
// P = P_static.
//
// Any number of threads may search (under LockForReading) or query; Update and Clear wait until
// they are done. Cost of an update: O(order) and a query of the static LM for each token.
#ifndef LATTICE_BPD_LM_CONTEXT_NGRAM_H_
#define LATTICE_BPD_LM_CONTEXT_NGRAM_H_

#include <cstddef>
#include <shared_mutex>

#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/lm/context_trie.h"

namespace lattice_bpd {

constexpr std::size_t kLeastContextTokens = 16;
constexpr std::size_t kMostContextTokens = std::size_t{1} << 26;

class ContextNgram {
 public:
  static constexpr double kFirstWeight = 0.1;
  static constexpr double kLeastWeight = 0.02;
  static constexpr double kLeastWeightAlone = 0.15;  // without a static LM

  // Counts the n-grams of up to `order` tokens in the last max_tokens tokens. Throws ValueError
  // where one of the three is out of range.
  ContextNgram(std::int64_t vocab_size, int order, std::int64_t max_tokens);

  // Adjusts the weights to tokens of the text, and counts them. `lm` is the static LM that the
  // cache is mixed with, or null; <s> precedes the text where bos is true. Throws ValueError
  // for ids outside the vocabulary or an LM of another tokenizer; then nothing is counted.
  void Update(Span<TokenId> tokens, const BackoffLm* lm, bool bos);

  // Forgets text and weights.
  void Clear();

  std::uint32_t vocab_size() const { return vocab_size_; }
  int order() const { return trie_.order(); }
  std::size_t max_tokens() const { return max_tokens_; }

  std::size_t num_tokens() const;

  // The tokens that it remembers, oldest first.
  std::vector<TokenId> text() const;

  // Makes it a cache that remembers these tokens and has these weights, of histories of 1, 2, ..
  // order - 1 tokens. Throws ValueError for more than max_tokens, ids outside the vocabulary or
  // weights of another number or outside 0..1; then nothing is changed.
  void Restore(Span<TokenId> tokens, const std::vector<double>& weights);

  // Of histories of 1, 2, .. order - 1 tokens.
  std::vector<double> weights() const;

  // ln P(token_id | context), mixed with `lm`. Throws ValueError as Update.
  double LogProb(TokenId token_id, Span<TokenId> context, const BackoffLm* lm, bool bos) const;

  // For what is below: while the lock is held nothing changes.
  std::shared_lock<std::shared_mutex> LockForReading() const {
    return std::shared_lock<std::shared_mutex>(mutex_);
  }

  const ContextTrie& trie() const { return trie_; }

  // Whether the cache counts at all, beside a static LM or without.
  bool IsActive(bool has_lm) const;

  // l_m of a history of m tokens that has a successor; above 0, below 1.
  double ShareOf(std::uint32_t node, std::uint32_t length) const {
    const ContextNode& history = trie_.node(node);
    const double count = history.successors;
    return weights_[length - 1] * (count / (count + history.distinct));
  }

  // c(g w) / c(g) of an n-gram g w.
  double ProbOf(std::uint32_t node) const {
    const ContextNode& ngram = trie_.node(node);
    return static_cast<double>(ngram.count) / trie_.node(ngram.parent).successors;
  }

  // Throws ValueError where the LM is of another tokenizer than the cache (MayShareIds).
  void CheckLm(const BackoffLm* lm) const;

 private:
  void CheckTokens(Span<TokenId> tokens, const char* where) const;
  void ResetWeights();
  LmState StateOfLm(const BackoffLm& lm, bool bos) const;
  void AdjustWeights(const ContextState& state, Symbol word, double static_prob);

  const std::uint32_t vocab_size_;
  const std::size_t max_tokens_;
  ContextTrie trie_;
  double weights_[kMaxOrder - 1];
  mutable std::shared_mutex mutex_;
};

// What a search needs of a cache: the cache, locked for reading, and the state of the context. No
// cache: null.
struct CachedContext {
  const ContextNgram* cache = nullptr;
  ContextState state;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_CONTEXT_NGRAM_H_
