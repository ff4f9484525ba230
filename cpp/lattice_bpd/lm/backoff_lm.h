// A backoff n-gram LM over symbols (base/label.h): the object that everything else queries.
//
//   ln P(w | h) = log_prob(hw)                       where the n-gram hw is in the model
//               = backoff(h) + ln P(w | suffix(h))   else ("failure": the weight is paid only here)
//
// Storage is a forward trie, packed (packed_level.h), in memory or mapped from a file (lm_file.h).
// It is closed under suffixes: where hw is in the model, so is (suffix of h)w. A query therefore
// goes from the shortest history up and stops at the first one that lacks the word.
//
// LmState is a plain value. It holds the node of each suffix of the history that the model knows,
// so that neither queries nor files need suffix links:
//
//   history "the cat sat", order 4:   nodes[0] = "sat"   nodes[1] = "cat sat"   nodes[2] = all
//
// Two histories with equal states get the same probabilities for ever. The model is immutable, so
// any number of threads may query it. No query allocates.
#ifndef LATTICE_BPD_LM_BACKOFF_LM_H_
#define LATTICE_BPD_LM_BACKOFF_LM_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/lm/packed_level.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/lm/vocabulary.h"

namespace lattice_bpd {

class AcceptorCache;  // lm_fst.h: the LM as FSTs, built at first use

struct LmState {
  std::uint32_t length = 0;                 // symbols of history that are in the model
  std::uint32_t nodes[kMaxOrder - 1] = {};  // nodes[l] is the suffix of l + 1 symbols, in level l

  bool operator==(const LmState& other) const {
    return length == other.length && (length == 0 || nodes[length - 1] == other.nodes[length - 1]);
  }
};

// What a query finds: the log probability of the longest n-gram, the backoffs paid for longer
// histories (longest first), the state after the word.
struct LmStep {
  float log_prob = 0.0f;
  int num_backoffs = 0;
  float backoffs[kMaxOrder] = {};
  LmState next;

  double TotalLogProb() const {
    double total = log_prob;
    for (int i = 0; i < num_backoffs; ++i) total += backoffs[i];
    return total;
  }
};

// Whether every n-gram's suffix is known to be in a trie, as after estimation, which links them.
enum class SuffixClosure { kUnknown, kKnown };

class BackoffLm {
 public:
  // Checks the trie (ValidateTrie; suffix closure unless it is known) and packs it, its orders on
  // up to num_threads threads. Throws ValueError.
  static std::shared_ptr<const BackoffLm> FromTrie(const Trie& trie,
                                                   Packing packing = Packing::kFast,
                                                   SuffixClosure closure = SuffixClosure::kUnknown,
                                                   int num_threads = 1);

  // `lm` with these words, whose levels it shares. Throws ValueError where they are not one for
  // each token id.
  static std::shared_ptr<const BackoffLm> WithWords(std::shared_ptr<const BackoffLm> lm,
                                                    std::shared_ptr<const WordList> words);

  // Takes levels that point into `storage` or into what `owner` holds, such as a mapped file; used
  // by FromTrie and lm_file.cc.
  BackoffLm(const Vocabulary& vocabulary, std::vector<PackedLevel> levels,
            std::vector<LevelStorage> storage, std::shared_ptr<const void> owner);
  ~BackoffLm();
  BackoffLm(const BackoffLm&) = delete;
  BackoffLm& operator=(const BackoffLm&) = delete;

  int order() const { return static_cast<int>(levels_.size()); }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  const std::vector<PackedLevel>& levels() const { return levels_; }
  AcceptorCache& acceptor_cache() const { return *acceptor_cache_; }

  // The state of a history, its latest symbol last. Symbols must be below num_symbols().
  LmState StateOf(Span<Symbol> history) const;

  // The state after a text's tokens; <s> precedes them where bos is true, unless the text
  // itself starts with a token that is named as <s>. Ids beyond the vocabulary are <unk>. Throws
  // ValueError for negative ones.
  LmState StateOfContext(Span<TokenId> context, bool bos) const;

  // ln P(word | state) with exact backoff. Cost: one search for each suffix of the history that
  // knows the word, and one more. A token id that an ARPA file lacked is <unk>.
  LmStep Query(const LmState& state, Symbol word) const;

  // The nodes of level `length` that extend node `node` of level length - 1: [first, second). For
  // the empty history (length 0) that is the whole of level 0.
  std::pair<std::uint32_t, std::uint32_t> Children(std::uint32_t length, std::uint32_t node) const {
    if (length == 0) return {0, static_cast<std::uint32_t>(levels_[0].size())};
    return levels_[length - 1].Children(node);
  }

 private:
  Vocabulary vocabulary_;
  std::vector<PackedLevel> levels_;
  std::vector<LevelStorage> storage_;
  std::shared_ptr<const void> owner_;
  std::unique_ptr<AcceptorCache> acceptor_cache_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_BACKOFF_LM_H_
