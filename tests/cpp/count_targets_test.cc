// Counting what was predicted after each history, and LMs of such counts.
#include "lattice_bpd/train/count_targets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "counting_examples.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/train/estimate.h"

namespace lattice_bpd {
namespace {

using Ngram = std::vector<std::int32_t>;
using NgramMap = std::map<Ngram, std::uint64_t>;

// The definition, written down as plainly as it goes; <s> is a symbol outside the vocabulary.
NgramMap CountPlainly(const Sequences& texts, const std::vector<TokenId>& targets, std::int32_t bos,
                      std::size_t order) {
  NgramMap counts;
  std::size_t at = 0;
  for (const auto& text : texts) {
    Ngram history = {bos};
    for (const TokenId token : text) {
      history.push_back(token);
      const TokenId target = targets[at++];
      if (target == kNoTarget) continue;
      for (std::size_t n = 1; n <= std::min(order, history.size() + 1); ++n) {
        Ngram ngram(history.end() - static_cast<std::ptrdiff_t>(n - 1), history.end());
        ngram.push_back(target);
        ++counts[ngram];
      }
    }
  }
  return counts;
}

NgramMap ToMap(const CountTrie& trie) {
  NgramMap counts;
  for (int level = 0; level < trie.order(); ++level) {
    const NgramTable table = ListNgrams(trie, level);
    for (std::size_t i = 0; i < table.counts.size(); ++i) {
      const auto row = table.symbols.begin() + static_cast<std::ptrdiff_t>(i) * (level + 1);
      counts[Ngram(row, row + level + 1)] = table.counts[i];
    }
  }
  return counts;
}

struct Example {
  Sequences texts;
  std::vector<TokenId> targets;

  Example(std::mt19937* random, int vocab_size, int skip_one_in) {
    texts.resize(1 + (*random)() % 12);
    for (auto& text : texts) {
      text.resize((*random)() % 25);
      for (TokenId& id : text) id = static_cast<TokenId>((*random)() % vocab_size);
      for (std::size_t i = 0; i < text.size(); ++i) {
        const bool skip = skip_one_in > 0 && (*random)() % skip_one_in == 0;
        // The last two token ids are never predicted.
        targets.push_back(skip ? kNoTarget : static_cast<TokenId>((*random)() % (vocab_size - 2)));
      }
    }
    texts.push_back({0, 1});
    targets.insert(targets.end(), {1, 0});
  }
};

Trie Estimate(const CountTrie& counts, Smoothing smoothing, Unseen unseen) {
  EstimateOptions options;
  options.order = counts.order();
  options.smoothing = smoothing;
  options.unseen = unseen;
  options.threads = 1;
  TrainReport report;
  return EstimateLm(counts, options, &report);
}

}  // namespace

TEST_CASE("target counts equal the plain definition") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int vocab_size = 4 + static_cast<int>(seed % 9);
    const Example example(&random, vocab_size, static_cast<int>(seed % 3));
    const Flat flat(example.texts);
    const Vocabulary vocabulary = MakeVocabulary(vocab_size, {});
    const int order = 1 + static_cast<int>(seed % kMaxOrder);
    const CountTrie trie =
        CountTargets(flat.view(), example.targets, vocabulary, order, 1 + seed % 3);
    CHECK(ToMap(trie) == CountPlainly(example.texts, example.targets,
                                      static_cast<std::int32_t>(vocabulary.bos),
                                      static_cast<std::size_t>(order)));
  }
}

TEST_CASE("targets by hand: the history is the text's, the last symbol is predicted") {
  const Sequences texts = {{0, 1, 2}};
  const CountTrie trie =
      CountTargets(Flat(texts).view(), std::vector<TokenId>{1, 2, 0}, MakeVocabulary(3, {}), 3, 1);
  const std::int32_t bos = 3;
  const NgramMap expected = {{{0}, 1},         {{1}, 1},       {{2}, 1},
                             {{0, 1}, 1},      {{1, 2}, 1},    {{2, 0}, 1},
                             {{bos, 0, 1}, 1}, {{0, 1, 2}, 1}, {{1, 2, 0}, 1}};
  CHECK(ToMap(trie) == expected);  // and not <s> 0, which nobody predicted
}

TEST_CASE("LMs of targets sum to one after every history and have no -inf") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int vocab_size = 4 + static_cast<int>(seed % 6);
    const Example example(&random, vocab_size, static_cast<int>(seed % 3));
    const Flat flat(example.texts);
    const CountTrie counts =
        CountTargets(flat.view(), example.targets, MakeVocabulary(vocab_size, {}), 1 + seed % 4, 1);
    const auto smoothing = static_cast<Smoothing>(seed % 5);
    const Unseen unseen = seed % 2 == 0 ? Unseen::kUniform : Unseen::kCost;
    const Trie trie = Estimate(counts, smoothing, unseen);
    for (const TrieLevel& level : trie.levels) {
      for (const float log_prob : level.log_prob) CHECK(std::isfinite(log_prob));
      for (const float backoff : level.backoff) CHECK(std::isfinite(backoff));
    }
    const auto lm = BackoffLm::FromTrie(trie);
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<TokenId> history(random() % 4);
      for (TokenId& id : history) id = static_cast<TokenId>(random() % vocab_size);
      double sum = 0.0;
      for (Symbol word = 0; word < static_cast<Symbol>(vocab_size); ++word) {
        sum += std::exp(lm->Query(lm->StateOfContext(history, true), word).TotalLogProb());
      }
      if (unseen == Unseen::kCost) CHECK(sum == doctest::Approx(1.0).epsilon(1e-4));
      CHECK(sum <= 1.0 + 1e-4);  // uniform: </s> and <unk> have shares too
    }
  }
}

TEST_CASE("bad targets are refused") {
  const Sequences texts = {{0, 1}};
  const Flat flat(texts);
  const Vocabulary vocabulary = MakeVocabulary(3, {});
  const auto count = [&](const std::vector<TokenId>& targets) {
    return CountTargets(flat.view(), targets, vocabulary, 2, 1);
  };
  CHECK_THROWS_AS(count({1}), ValueError);
  CHECK_THROWS_AS(count({1, 3}), ValueError);
  CHECK_THROWS_AS(count({1, -2}), ValueError);
  CHECK_THROWS_AS(count({kNoTarget, kNoTarget}), ValueError);
}

}  // namespace lattice_bpd
