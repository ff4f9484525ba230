// Random caches, and the probabilities of a cache mixed with an LM straight from the definition.
#ifndef LATTICE_BPD_TESTS_CPP_RANDOM_CACHES_H_
#define LATTICE_BPD_TESTS_CPP_RANDOM_CACHES_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/lm/context_ngram.h"
#include "random_lattices.h"

namespace lattice_bpd {

using Tokens = std::vector<TokenId>;

// How often each n-gram of up to `order` tokens occurs in a text.
inline std::map<Tokens, int> CountNgrams(const Tokens& text, int order) {
  std::map<Tokens, int> counts;
  for (std::size_t first = 0; first < text.size(); ++first) {
    for (std::size_t size = 1; size <= std::min<std::size_t>(order, text.size() - first); ++size) {
      const auto begin = text.begin() + static_cast<std::ptrdiff_t>(first);
      ++counts[Tokens(begin, begin + static_cast<std::ptrdiff_t>(size))];
    }
  }
  return counts;
}

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

// The definition of context_ngram.h, from counts in a map.
class CacheOracle {
 public:
  CacheOracle(const Tokens& text, const ContextNgram& cache, const BackoffLm* lm, bool bos)
      : counts_(CountNgrams(text, cache.order())),
        weights_(cache.weights()),
        vocab_size_(cache.vocab_size()),
        lm_(lm),
        bos_(bos) {
    for (const auto& [ngram, count] : counts_) {
      if (ngram.size() < 2) continue;
      const Tokens history(ngram.begin(), ngram.end() - 1);
      successors_[history] += count;
      ++distinct_[history];
    }
    const double largest =
        weights_.empty() ? 0.0 : *std::max_element(weights_.begin(), weights_.end());
    active_ =
        largest >= (lm == nullptr ? ContextNgram::kLeastWeightAlone : ContextNgram::kLeastWeight);
  }

  // Adds up ln P of a token after a text in double, without any grid.
  double LogProb(const Tokens& before, TokenId token) const {
    const Parts parts = PartsOf(before, token);
    return parts.cached > 0.0 ? std::log(parts.kept * parts.static_prob + parts.cached)
                              : parts.log_prob + std::log(parts.kept);
  }

  // What it adds to a score, each part on the grid as docs/search.md says.
  double Scaled(const Tokens& before, TokenId token, double alpha) const {
    const Parts parts = PartsOf(before, token);
    if (parts.cached > 0.0) {
      return ToScoreGrid(alpha * std::log(parts.kept * parts.static_prob + parts.cached));
    }
    double total = 0.0;
    for (const double part : parts.static_parts) total += ToScoreGrid(alpha * part);
    for (const double share : parts.shares) total += ToScoreGrid(alpha * std::log(1.0 - share));
    return total;
  }

 private:
  struct Parts {
    double static_prob, log_prob = 0.0;
    std::vector<double> static_parts;  // natural logs: the n-gram's, then backoffs
    std::vector<double> shares;        // by rising length of history
    double kept = 1.0, cached = 0.0;
  };

  Parts PartsOf(const Tokens& before, TokenId token) const {
    Parts parts;
    parts.static_prob = 1.0 / vocab_size_;
    if (lm_ == nullptr) {
      parts.static_parts = {-std::log(static_cast<double>(vocab_size_))};
    } else {
      const LmStep step = lm_->Query(lm_->StateOfContext(before, bos_), static_cast<Symbol>(token));
      parts.static_prob = std::exp(static_cast<double>(step.log_prob));
      parts.static_parts = {step.log_prob};
      for (int i = step.num_backoffs; i-- > 0;) {
        parts.static_parts.push_back(step.backoffs[i]);
        if (step.backoffs[i] != 0.0f) {
          parts.static_prob = std::exp(static_cast<double>(step.backoffs[i])) * parts.static_prob;
        }
      }
    }
    for (const double part : parts.static_parts) parts.log_prob += part;
    if (active_) AddCache(before, token, &parts);
    return parts;
  }

  void AddCache(const Tokens& before, TokenId token, Parts* parts) const {
    for (std::size_t m = 1; m <= std::min(weights_.size(), before.size()); ++m) {
      Tokens ngram(before.end() - static_cast<std::ptrdiff_t>(m), before.end());
      if (successors_.count(ngram) == 0) break;
      const double count = successors_.at(ngram);
      const double share = weights_[m - 1] * (count / (count + distinct_.at(ngram)));
      ngram.push_back(token);
      const auto entry = counts_.find(ngram);
      const double own = entry == counts_.end() ? 0.0 : share * (entry->second / count);
      parts->shares.push_back(share);
      parts->kept *= 1.0 - share;
      parts->cached = (1.0 - share) * parts->cached + own;
    }
  }

  std::map<Tokens, int> counts_, successors_, distinct_;
  std::vector<double> weights_;
  std::uint32_t vocab_size_;
  const BackoffLm* lm_;
  bool bos_;
  bool active_;
};

struct OraclePath {
  Tokens token_ids;
  double score;   // on the grid
  double direct;  // the same without a grid
};

// All paths by falling score, equal scores by token ids; none of a lattice without slots.
inline std::vector<OraclePath> ListPaths(const Sausage& lattice, const CacheOracle& oracle,
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

// A context, an LM or none, and a cache of some text.
struct Case {
  std::shared_ptr<const BackoffLm> lm;  // null: none
  std::unique_ptr<ContextNgram> cache;
  Tokens text, context;
  bool bos;
  double alpha;

  LmState Start() const { return lm ? lm->StateOfContext(context, bos) : LmState{}; }
  CachedContext Cached() const { return {cache.get(), cache->trie().StateOf(context)}; }
  std::vector<OraclePath> Paths(const Sausage& lattice) const {
    return ListPaths(lattice, CacheOracle(text, *cache, lm.get(), bos), context, alpha);
  }
};

// Orders 1 to 6 of the cache, of the static LM or none, in all pairs.
inline Case RandomCase(Random* random, std::uint32_t seed, std::uint32_t vocab_size) {
  const int order = static_cast<int>(seed % 7);  // 0: no LM
  const int cache_order = 1 + static_cast<int>(seed / 7 % 6);
  const std::uint32_t used = 2 + Below(random, std::min(vocab_size - 2, 7u));
  const double alphas[] = {1.0, 0.3, 0.0, -1.25, 16.0};
  Case made{nullptr,
            std::make_unique<ContextNgram>(vocab_size, cache_order, 1000),
            RandomText(random, used, Below(random, 60)),
            {},
            Below(random, 2) == 0,
            alphas[Below(random, 5)]};
  if (order > 0) {
    made.lm = RandomLm(random, vocab_size, used, order, static_cast<int>(Below(random, 150)),
                       Below(random, 2) == 0);
  }
  made.cache->Update(made.text, made.lm.get(), made.bos);
  if (Below(random, 2) == 0) {  // as decoders do; else a context that the cache may not know
    const std::size_t size = std::min<std::size_t>(made.text.size(), Below(random, 8));
    made.context.assign(made.text.end() - static_cast<std::ptrdiff_t>(size), made.text.end());
  } else {
    made.context = RandomText(random, vocab_size, Below(random, 8));
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

#endif  // LATTICE_BPD_TESTS_CPP_RANDOM_CACHES_H_
