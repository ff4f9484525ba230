// The fused search at its edges: long runs of keys, wide and many slots, key widths, values that
// do not fit in memory kept, lists longer than there are paths. The openfst engine is the judge.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/lattice/sausage.h"
#include "random_lattices.h"

namespace lattice_bpd {
namespace {

// `count` different numbers below `limit`.
std::vector<Symbol> Choose(Random* random, std::uint32_t count, std::uint32_t limit) {
  std::vector<Symbol> all(limit);
  for (Symbol i = 0; i < limit; ++i) all[i] = i;
  for (std::uint32_t i = 0; i < count; ++i) std::swap(all[i], all[i + Below(random, limit - i)]);
  all.resize(count);
  return all;
}

// Histories whose children are runs of lengths that the searches tell apart: token i has kRuns[i]
// of them as a history of its own, and as many again after token 0.
constexpr std::uint32_t kRuns[] = {8193, 0,  1,  2,  7,  8,  16, 17,  31,
                                   32,   33, 63, 64, 65, 96, 97, 700, 9000};
constexpr std::uint32_t kNumRuns = sizeof kRuns / sizeof *kRuns;

std::shared_ptr<const BackoffLm> LmOfRuns(Random* random, std::uint32_t vocab_size, bool exact) {
  const Vocabulary vocabulary = MakeVocabulary(vocab_size, {});
  std::vector<Ngram> ngrams;
  for (Symbol symbol = 0; symbol < vocabulary.num_symbols(); ++symbol) {
    const float log_prob = symbol % 7 == 5 ? -1000.0f : Sample(random, exact);  // unseen words
    ngrams.push_back({{symbol}, log_prob, Sample(random, exact)});
  }
  std::vector<Ngram> trigrams;
  for (Symbol history = 0; history < kNumRuns; ++history) {
    std::vector<Symbol> next = Choose(random, kRuns[history], vocab_size);
    if (history == 0) {  // so that the trigrams' histories are there
      for (Symbol i = 0; i < kNumRuns; ++i) {
        if (std::find(next.begin(), next.end(), i) == next.end()) next.push_back(i);
      }
    }
    for (const Symbol symbol : next) {
      ngrams.push_back({{history, symbol}, Sample(random, exact), Sample(random, exact)});
      if (Below(random, 4) != 0)
        trigrams.push_back({{0, history, symbol}, Sample(random, exact), 0});
    }
  }
  ngrams.insert(ngrams.end(), trigrams.begin(), trigrams.end());
  return BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(3, ngrams)));
}

Sausage RandomLattice(Random* random, std::uint32_t num_slots, std::uint32_t width,
                      std::uint32_t num_tokens, bool exact) {
  Sausage sausage;
  for (std::uint32_t slot = 0; slot < num_slots; ++slot) {
    std::vector<TokenId> token_ids;
    std::vector<float> scores;
    const std::uint32_t own = std::min(width, 1 + Below(random, width) + width / 2);
    std::vector<bool> used(num_tokens);
    for (std::uint32_t i = 0; i < own; ++i) {
      const std::uint32_t range = i % 2 == 0 ? std::min(num_tokens, kNumRuns + 2) : num_tokens;
      const Symbol symbol = Below(random, range);  // every other candidate is a history
      if (used[symbol]) continue;
      used[symbol] = true;
      token_ids.push_back(static_cast<TokenId>(symbol));
      scores.push_back(Sample(random, exact));
    }
    sausage.AddSlot(token_ids, scores);
  }
  return sausage;
}

// True where every build of the fused engine gives what the openfst engine gives.
bool EnginesAgree(const Sausage& lattice, const BackoffLm* lm, const LmState& start, int num_drafts,
                  double alpha) {
  const DraftList expected = FindDrafts(lattice, lm, start, {num_drafts, alpha, Engine::kOpenFst});
  bool agree = expected.size() > 0;
  for (const std::string& name : FusedInstructionSets()) {
    SetFusedInstructionSet(name);
    const DraftList drafts = FindDrafts(lattice, lm, start, {num_drafts, alpha, Engine::kFused});
    agree = agree && drafts.token_ids == expected.token_ids && drafts.scores == expected.scores;
  }
  SetFusedInstructionSet("");
  return agree;
}

TEST_CASE("runs of every length, with 2-byte and 4-byte keys") {
  for (const std::uint32_t vocab_size : {9001u, 65532u, 65533u, 65534u, 65537u, 70000u}) {
    Random random(vocab_size);
    const bool exact = vocab_size % 2 == 0;
    const auto lm = LmOfRuns(&random, vocab_size, exact);
    for (int trial = 0; trial < 12; ++trial) {
      const std::uint32_t widths[] = {8, 16, 40, 256};
      const Sausage lattice =
          RandomLattice(&random, 1 + trial % 4, widths[trial % 4], vocab_size, exact);
      std::vector<TokenId> context(Below(&random, 3), 0);
      context.push_back(static_cast<TokenId>(Below(&random, kNumRuns)));
      const LmState start = lm->StateOfContext(context, false);
      INFO("vocabulary ", vocab_size, " trial ", trial);
      CHECK(EnginesAgree(lattice, lm.get(), start, 1 + trial * 3, trial % 3 == 0 ? -0.5 : 1.0));
    }
  }
}

TEST_CASE("64 slots, 256 candidates, 1,024 drafts") {
  Random random(7);
  const auto lm = LmOfRuns(&random, 9001, true);
  CHECK(EnginesAgree(RandomLattice(&random, 64, 24, 9001, true), lm.get(), {}, 64, 0.5));
  CHECK(EnginesAgree(RandomLattice(&random, 3, 256, 500, true), lm.get(), {}, 1024, 1.0));
  CHECK(EnginesAgree(RandomLattice(&random, 5, 256, 9001, false), lm.get(), {}, 1024, 2.0));
}

// Every token follows every other one, so every candidate is a row: 24 x 200 rows of 200 lanes,
// more than are kept.
TEST_CASE("more values than are kept") {
  Random random(11);
  constexpr Symbol kTokens = 200;
  std::vector<Ngram> ngrams;
  const Vocabulary vocabulary = MakeVocabulary(kTokens, {});
  for (Symbol a = 0; a < vocabulary.num_symbols(); ++a) {
    ngrams.push_back({{a}, Sample(&random, true), Sample(&random, true)});
  }
  for (Symbol a = 0; a < kTokens; ++a) {
    for (Symbol b = 0; b < kTokens; ++b) {
      if (Below(&random, 4) != 0) ngrams.push_back({{a, b}, Sample(&random, true), 0.0f});
    }
  }
  const auto lm = BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(2, ngrams)));
  Sausage lattice;
  for (int slot = 0; slot < 28; ++slot) {
    std::vector<TokenId> token_ids;
    std::vector<float> scores;
    for (TokenId token = 0; token < static_cast<TokenId>(kTokens); ++token) {
      token_ids.push_back(token);
      scores.push_back(Sample(&random, true));
    }
    lattice.AddSlot(token_ids, scores);
  }
  CHECK(EnginesAgree(lattice, lm.get(), lm->StateOfContext({}, true), 100, 1.0));
}

}  // namespace
}  // namespace lattice_bpd
