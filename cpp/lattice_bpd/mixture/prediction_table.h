// What the target predicted, by the last tokens of the histories that it has read.
//
// A call of the target computes a distribution after every token that it reads, nodes of drafts
// that it rejects included. The most probable next tokens of each are kept under the last token and
// under the last two, and are drafts where these come again. Token Recycling (Luo et al. 2024,
// arXiv 2408.08696) keeps such tokens, without probabilities, by the last token.
#ifndef LATTICE_BPD_MIXTURE_PREDICTION_TABLE_H_
#define LATTICE_BPD_MIXTURE_PREDICTION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/label.h"
#include "lattice_bpd/mixture/gates.h"
#include "lattice_bpd/mixture/lm_successors.h"

namespace lattice_bpd {

constexpr int kPredictions = 8;       // next tokens of a key
constexpr int kPredictionLength = 2;  // tokens of the longest key

// The last tokens of a history, the latest first.
struct LastTokens {
  int count = 0;
  Symbol tokens[kPredictionLength] = {};

  LastTokens Then(Symbol token) const;
};

// Next tokens by decreasing probability; after the last one probabilities are 0.
struct Prediction {
  Symbol tokens[kPredictions] = {};
  float probs[kPredictions] = {};
};

class PredictionTable {
 public:
  // Keeps the `max_keys` keys that were added last, and at most as many older ones; 90 bytes each.
  explicit PredictionTable(std::size_t max_keys) : max_keys_(max_keys) {}

  // Adds what follows a history under each of its keys, where it is averaged with what is known.
  void Add(const LastTokens& last, const Prediction& prediction);

  // Tokens after a history, those of its longest key first, at most kPredictions:
  //
  //   P_m(b) = 0.3 P_(m-1)(b) + 0.7 p(b | last m tokens)
  //
  // over the keys that are known, here or else in `others` (or null); the shortest of them counts
  // whole. Fills out[0 .. returned - 1] and `match`.
  int Find(const LastTokens& last, const PredictionTable* others, Successor* out,
           SourceMatch* match) const;

 private:
  struct Entry {
    std::uint64_t key;
    Prediction prediction;
  };
  struct Generation {
    std::vector<Entry> entries;
    std::vector<std::uint32_t> table;  // indices + 1: open addressing, linear probing

    const Entry* Find(std::uint64_t key) const;
    void Insert(const Entry& entry);
    void Put(std::uint32_t index);
  };

  const Prediction* Lookup(std::uint64_t key) const;

  std::size_t max_keys_;
  Generation young_, old_;  // `old_` is dropped when `young_` is full
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_PREDICTION_TABLE_H_
