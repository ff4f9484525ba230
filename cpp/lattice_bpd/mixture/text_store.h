// A store of the n-grams of texts, shared by the texts that are drafted for.
#ifndef LATTICE_BPD_MIXTURE_TEXT_STORE_H_
#define LATTICE_BPD_MIXTURE_TEXT_STORE_H_

#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/lm/context_trie.h"
#include "lattice_bpd/mixture/prediction_table.h"

namespace lattice_bpd {

// Throws ValueError, which begins with `where`, for an id outside 0 .. vocab_size - 1.
void CheckToken(std::int64_t token, std::uint32_t vocab_size, const char* where);

// The latest tokens of other texts, and what the target predicted in them, for all sequences of a
// process. Threads may share it.
class TextStore {
 public:
  // Keeps the last `max_tokens` tokens, and as many keys of predictions. Throws ValueError where
  // that is below kMaxOrder + 1.
  explicit TextStore(std::size_t max_tokens);

  // Adds a text. Its n-grams do not span texts but for the separator, which is no token.
  void Add(Span<TokenId> text);

  std::vector<TokenId> Tokens() const;  // kPadToken between texts
  std::size_t max_tokens() const { return max_tokens_; }

  std::shared_mutex& mutex() const { return mutex_; }
  // With the mutex held.
  const ContextTrie& counts() const { return counts_; }
  const PredictionTable& predictions() const { return predictions_; }
  PredictionTable* mutable_predictions() { return &predictions_; }

 private:
  const std::size_t max_tokens_;
  ContextTrie counts_;
  PredictionTable predictions_;
  mutable std::shared_mutex mutex_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_TEXT_STORE_H_
