// Parts of an LM, worked on alone, give what the whole LM gives, bit for bit.
#include "lattice_bpd/train/row_trie.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/trie_assembler.h"
#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/count_runs.h"
#include "lattice_bpd/train/estimate.h"
#include "lattice_bpd/train/prune_scores.h"

namespace lattice_bpd {
namespace {

constexpr int kOrder = 3;

struct Corpus {
  std::vector<TokenId> ids;
  std::vector<std::int64_t> offsets = {0};
  Vocabulary vocabulary = MakeVocabulary(7, {});

  TokenSequences sequences() const { return {ids, offsets}; }
};

Corpus MakeCorpus(unsigned seed) {
  std::mt19937 random(seed);
  Corpus corpus;
  for (int i = 0; i < 60; ++i) {
    for (unsigned n = random() % 12; n > 0; --n) {
      corpus.ids.push_back(static_cast<TokenId>(random() % 7 * (random() % 7) / 6));
    }
    corpus.offsets.push_back(static_cast<std::int64_t>(corpus.ids.size()));
  }
  return corpus;
}

// The rows of an LM's trie whose last but one symbol is in `ends`.
struct Part {
  std::vector<std::vector<Symbol>> symbols;
  std::vector<std::vector<float>> log_prob;
  std::vector<std::vector<double>> context_prob;
  std::vector<std::vector<double>> cost;

  RowsByOrder rows() const {
    RowsByOrder rows;
    for (const auto& level : symbols) rows.push_back({static_cast<int>(rows.size()) + 2, level});
    return rows;
  }
};

Part CutOut(const Trie& trie, const std::set<Symbol>& ends) {
  const NgramScores probs = NgramProbs(trie, 1);
  const NgramScores costs = RelativeEntropyScores(trie, 1);
  Part part{{{}, {}}, {{}, {}}, {{}, {}}, {{}, {}}};
  const auto add = [&](int m, std::uint32_t context, std::uint32_t node,
                       const std::vector<Symbol>& ngram) {
    part.symbols[m - 1].insert(part.symbols[m - 1].end(), ngram.begin(), ngram.end());
    part.log_prob[m - 1].push_back(trie.levels[m].log_prob[node]);
    part.context_prob[m - 1].push_back(probs[m - 1][context]);
    part.cost[m - 1].push_back(costs[m][node]);
  };
  for (Symbol a = 0; a < trie.levels[0].size(); ++a) {
    for (auto i = trie.levels[0].child_begin[a]; i < trie.levels[0].child_begin[a + 1]; ++i) {
      const Symbol b = trie.levels[1].word[i];
      if (ends.count(a) != 0) add(1, a, i, {a, b});
      if (ends.count(b) == 0) continue;
      for (auto j = trie.levels[1].child_begin[i]; j < trie.levels[1].child_begin[i + 1]; ++j) {
        add(2, i, j, {a, b, trie.levels[2].word[j]});
      }
    }
  }
  return part;
}

TEST_CASE("a part has the removal costs and backoff weights of the whole") {
  for (unsigned seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const Corpus corpus = MakeCorpus(seed);
    EstimateOptions options;
    options.order = kOrder;
    const Trie trie = TrainLm(corpus.sequences(), corpus.vocabulary, options, nullptr);
    for (const std::set<Symbol>& ends : {std::set<Symbol>{0, 3}, {1}, {2, 4, 5, 7}}) {
      const Part part = CutOut(trie, ends);
      const RowsByOrder rows = part.rows();
      const RowTrie shape = LinkRows(corpus.vocabulary, rows);
      const Trie linked = TrieOfRows(corpus.vocabulary, shape, trie.levels[0].log_prob,
                                     {part.log_prob[0], part.log_prob[1]});
      CHECK(RemovalCostsOfRows(linked, shape, {part.context_prob[0], part.context_prob[1]}) ==
            part.cost);
      const std::vector<ContextBackoffs> backoffs = BackoffsOfRows(linked, shape, rows);
      REQUIRE_FALSE(backoffs[0].backoff.empty());
      for (std::size_t i = 0; i < backoffs[0].backoff.size(); ++i) {
        CHECK(ends.count(backoffs[0].symbols[i]) == 1);
        CHECK(backoffs[0].backoff[i] == trie.levels[0].backoff[backoffs[0].symbols[i]]);
      }
    }
  }
}

TEST_CASE("rows out of order or outside the vocabulary are refused") {
  const Vocabulary vocabulary = MakeVocabulary(3, {});
  const std::vector<Symbol> falling = {1, 0, 0, 1};
  CHECK_THROWS_WITH_AS(LinkRows(vocabulary, {{2, falling}}),
                       doctest::Contains("row 1 of order 2 does not come after"), ValueError);
  const std::vector<Symbol> outside = {0, 9};
  CHECK_THROWS_WITH_AS(LinkRows(vocabulary, {{2, outside}}), doctest::Contains("expected 0..5"),
                       ValueError);
  const std::vector<std::string> cut = {"LBPD-NC"};
  CHECK_THROWS_AS(OpenRuns(cut), FormatError);
}

}  // namespace
}  // namespace lattice_bpd
