// Random contexts with an LM or none, and the scores of all paths straight from the definition.
#ifndef LATTICE_BPD_TESTS_CPP_RANDOM_CASES_H_
#define LATTICE_BPD_TESTS_CPP_RANDOM_CASES_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/find_drafts.h"
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

  // ln P of the token, in double without any grid.
  double LogProb(const Tokens& before, TokenId token) const {
    double total = 0.0;
    for (const double part : PartsOf(before, token)) total += part;
    return total;
  }

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

struct OraclePath {
  Tokens token_ids;
  double score;   // on the grid
  double direct;  // the same without a grid
};

// All paths by falling score, equal scores by token ids; none of a lattice without slots.
inline std::vector<OraclePath> ListPaths(const Sausage& lattice, const LmOracle& oracle,
                                         const Tokens& context, double alpha) {
  if (lattice.num_slots() == 0) return {};
  std::vector<OraclePath> paths = {{{}, 0.0, 0.0}};
  for (std::size_t slot = 0; slot < lattice.num_slots(); ++slot) {
    std::vector<OraclePath> longer;
    for (const OraclePath& path : paths) {
      Tokens before = context;
      before.insert(before.end(), path.token_ids.begin(), path.token_ids.end());
      for (std::size_t i = 0; i < lattice.width(slot); ++i) {
        OraclePath next = path;
        const TokenId token = lattice.token_ids(slot)[i];
        next.token_ids.push_back(token);
        next.score += ToScoreGrid(lattice.scores(slot)[i]) + oracle.Scaled(before, token, alpha);
        next.direct += lattice.scores(slot)[i] + alpha * oracle.LogProb(before, token);
        longer.push_back(next);
      }
    }
    paths = longer;
  }
  std::sort(paths.begin(), paths.end(), [](const OraclePath& a, const OraclePath& b) {
    return a.score > b.score || (a.score == b.score && a.token_ids < b.token_ids);
  });
  return paths;
}

// A context, and an LM or none.
struct Case {
  std::shared_ptr<const BackoffLm> lm;  // null: none
  Tokens context;
  bool bos;
  double alpha;

  LmState Start() const { return lm ? lm->StateOfContext(context, bos) : LmState{}; }
  std::vector<OraclePath> Paths(const Sausage& lattice) const {
    return ListPaths(lattice, LmOracle(lm.get(), bos), context, alpha);
  }
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

// The probability of every prefix of one token or more.
inline std::map<Tokens, double> MassesOf(const std::vector<OraclePath>& paths) {
  std::map<Tokens, double> masses;
  double total = 0.0;
  for (const OraclePath& path : paths) total += std::exp(path.score - paths[0].score);
  for (const OraclePath& path : paths) {
    for (std::size_t size = 1; size <= path.token_ids.size(); ++size) {
      masses[{path.token_ids.begin(),
              path.token_ids.begin() + static_cast<std::ptrdiff_t>(size)}] +=
          std::exp(path.score - paths[0].score) / total;
    }
  }
  return masses;
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_CPP_RANDOM_CASES_H_
