// Random models and lattices that hit them, for tests that compare two ways to an answer.
#ifndef LATTICE_BPD_TESTS_CPP_RANDOM_LATTICES_H_
#define LATTICE_BPD_TESTS_CPP_RANDOM_LATTICES_H_

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "lattice_bpd/lattice/sausage.h"
#include "lm_examples.h"

namespace lattice_bpd {

using Random = std::mt19937;

inline std::uint32_t Below(Random* random, std::uint32_t limit) {
  return static_cast<std::uint32_t>((*random)() % limit);
}

// A number from a few eighths (then sums tie) or a real one, most of them off the score grid. The
// same on every platform, since digests_test.cc compares answers between platforms.
inline float Sample(Random* random, bool exact) {
  if (exact) return -static_cast<float>(Below(random, 24)) / 8.0f;
  const double number = static_cast<double>((*random)());
  const double fraction = number / (static_cast<double>(Random::max()) + 1.0);
  return static_cast<float>(-4.0 * fraction / (1 + Below(random, 9)));
}

// N-grams over the first `used` tokens, so that lattices over them hit; histories come along.
inline std::shared_ptr<const BackoffLm> RandomLm(Random* random, std::uint32_t vocab_size,
                                                 std::uint32_t used, int order, int ngrams,
                                                 bool exact) {
  const Vocabulary vocabulary = MakeVocabulary(vocab_size, {});
  std::set<std::vector<Symbol>> known;
  for (int i = 0; i < ngrams && order > 1; ++i) {
    std::vector<Symbol> ngram(2 + Below(random, static_cast<std::uint32_t>(order) - 1));
    for (Symbol& symbol : ngram) symbol = std::min(Below(random, used), Below(random, used));
    if (Below(random, 5) == 0) ngram[0] = vocabulary.bos;
    for (std::size_t size = 2; size <= ngram.size(); ++size) {
      known.insert({ngram.begin(), ngram.begin() + static_cast<std::ptrdiff_t>(size)});
    }
  }
  std::vector<Ngram> listed;
  for (Symbol symbol = 0; symbol < vocabulary.num_symbols(); ++symbol) {
    listed.push_back({{symbol}, Sample(random, exact), Sample(random, exact)});
  }
  for (const std::vector<Symbol>& ngram : known) {
    listed.push_back({ngram, Sample(random, exact), Sample(random, exact)});
  }
  return BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(order, listed)));
}

inline Sausage RandomLattice(Random* random, std::uint32_t num_tokens, std::uint32_t max_width) {
  Sausage sausage;
  const bool exact = Below(random, 2) == 0;
  const bool masks = Below(random, 4) == 0;
  for (std::uint32_t slot = 1 + Below(random, 5); slot > 0; --slot) {
    std::set<TokenId> chosen;
    const std::uint32_t width = 1 + Below(random, std::min(max_width, num_tokens));
    while (chosen.size() < width) chosen.insert(static_cast<TokenId>(Below(random, num_tokens)));
    const std::vector<TokenId> token_ids(chosen.begin(), chosen.end());
    std::vector<float> scores;
    for (std::size_t i = 0; i < token_ids.size(); ++i) {
      const bool masked = masks && Below(random, 5) == 0;
      scores.push_back(masked ? -std::numeric_limits<float>::infinity() : Sample(random, exact));
    }
    sausage.AddSlot(token_ids, scores);
  }
  return sausage;
}

// Some tokens at random, some in a loop.
inline std::vector<TokenId> RandomText(Random* random, std::uint32_t num_tokens, std::size_t size) {
  std::vector<TokenId> text;
  while (text.size() < size) {
    const bool repeats = !text.empty() && Below(random, 3) != 0;
    const std::size_t length = 1 + Below(random, 6);
    const std::size_t back = 1 + Below(random, 7);
    for (std::size_t i = 0; i < length && text.size() < size; ++i) {
      const bool copies = repeats && text.size() >= back;
      text.push_back(copies ? text[text.size() - back]
                            : static_cast<TokenId>(Below(random, num_tokens)));
    }
  }
  return text;
}

// The same lattice with random transitions.
inline Sausage WithTransitions(Random* random, const Sausage& lattice) {
  const bool exact = Below(random, 2) == 0;
  const float scale = Below(random, 8) == 0 ? 200.0f : 1.0f;
  Sausage out;
  for (std::size_t slot = 0; slot < lattice.num_slots(); ++slot) {
    std::vector<float> transitions;
    const std::size_t pairs = slot == 0 ? 0 : lattice.width(slot - 1) * lattice.width(slot);
    for (std::size_t i = 0; i < pairs; ++i) {
      transitions.push_back(scale * (2.0f + Sample(random, exact)));
    }
    out.AddSlot(lattice.token_ids(slot), lattice.scores(slot), transitions);
  }
  return out;
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_CPP_RANDOM_LATTICES_H_
