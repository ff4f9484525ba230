// Random contexts with an LM or none, and what it adds to a score straight from the definition.
#ifndef LATTICE_BPD_TESTS_CPP_RANDOM_CASES_H_
#define LATTICE_BPD_TESTS_CPP_RANDOM_CASES_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "random_lattices.h"

namespace lattice_bpd {

using Tokens = std::vector<TokenId>;

// Some tokens at random, some in a loop.
inline Tokens RandomText(Random* random, std::uint32_t num_tokens, std::size_t size) {
  Tokens text;
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

// What an LM adds to the score of a token after a text; nothing without one.
class LmOracle {
 public:
  LmOracle(const BackoffLm* lm, bool bos) : lm_(lm), bos_(bos) {}

  // alpha * ln P, each part on the grid as docs/concepts.md says.
  double Scaled(const Tokens& before, TokenId token, double alpha) const {
    double total = 0.0;
    for (const double part : PartsOf(before, token)) total += ToScoreGrid(alpha * part);
    return total;
  }

 private:
  // The n-gram's, then backoffs.
  std::vector<double> PartsOf(const Tokens& before, TokenId token) const {
    if (lm_ == nullptr) return {};
    const LmStep step = lm_->Query(lm_->StateOfContext(before, bos_), static_cast<Symbol>(token));
    std::vector<double> parts = {step.log_prob};
    parts.insert(parts.end(), step.backoffs, step.backoffs + step.num_backoffs);
    return parts;
  }

  const BackoffLm* lm_;
  bool bos_;
};

// A context, and an LM or none.
struct Case {
  std::shared_ptr<const BackoffLm> lm;  // null: none
  Tokens context;
  bool bos;
  double alpha;

  LmState Start() const { return lm ? lm->StateOfContext(context, bos) : LmState{}; }
};

// Orders 1 to 6 of the LM, or none.
inline Case RandomCase(Random* random, std::uint32_t seed, std::uint32_t vocab_size) {
  const int order = static_cast<int>(seed % 7);  // 0: no LM
  const std::uint32_t used = 2 + Below(random, std::min(vocab_size - 2, 7u));
  const double alphas[] = {1.0, 0.3, 0.0, -1.25, 16.0};
  Case made{nullptr,
            RandomText(random, Below(random, 2) == 0 ? used : vocab_size, Below(random, 8)),
            Below(random, 2) == 0, alphas[Below(random, 5)]};
  if (order > 0) {
    made.lm = RandomLm(random, vocab_size, used, order, static_cast<int>(Below(random, 150)),
                       Below(random, 2) == 0);
  }
  return made;
}

inline Sausage SmallLattice(Random* random, std::uint32_t num_tokens) {
  for (;;) {
    Sausage lattice = RandomLattice(random, num_tokens, 9);
    if (lattice.CountPaths(2000) < 2000) return lattice;
  }
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_CPP_RANDOM_CASES_H_
