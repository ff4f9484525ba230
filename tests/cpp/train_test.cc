// Katz estimation: an example with its arithmetic, edge corpora, and the law of sums.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/good_turing.h"
#include "lattice_bpd/train/katz.h"

namespace lattice_bpd {
namespace {

using Sequences = std::vector<std::vector<TokenId>>;

Trie Train(const Sequences& sequences, const Vocabulary& vocabulary, const KatzOptions& options,
           TrainReport* report) {
  std::vector<TokenId> ids;
  std::vector<std::int64_t> offsets = {0};
  for (const auto& sequence : sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  return TrainKatz({ids, offsets}, vocabulary, options, report);
}

// P(word | history) by a walk over the trie.
double Prob(const BackoffLm& lm, const std::vector<Symbol>& history, Symbol word) {
  return std::exp(lm.Query(lm.StateOf(history), word).TotalLogProb());
}

// The largest |1 - sum over all symbols of P(w | state)| over every state of the LM that has this
// history.
double WorstSum(const BackoffLm& lm, const LmState& state = {}) {
  double sum = 0.0;
  for (Symbol word = 0; word < lm.vocabulary().num_symbols(); ++word) {
    sum += std::exp(lm.Query(state, word).TotalLogProb());
  }
  double worst = std::abs(1.0 - sum);
  if (state.length + 1 == static_cast<std::uint32_t>(lm.order())) return worst;
  const std::uint32_t node = state.length == 0 ? 0 : state.nodes[state.length - 1];
  const auto [first, last] = lm.Children(state.length, node);
  for (std::uint32_t child = first; child < last; ++child) {
    const LmState longer = lm.Query(state, lm.levels()[state.length].Key(child)).next;
    worst = std::max(worst, WorstSum(lm, longer));
  }
  return worst;
}

// a b / a b / a c / b a, with a = 0, b = 1, c = 2, <s> = 3, </s> = 4.
const Sequences kWorked = {{0, 1}, {0, 1}, {0, 2}, {1, 0}};
constexpr Symbol kA = 0, kB = 1, kC = 2, kBos = 3, kEos = 4;

KatzOptions Options(int order, int katz_k) {
  KatzOptions options;
  options.order = order;
  options.katz_k = katz_k;
  options.threads = 2;
  return options;
}

}  // namespace

TEST_CASE("Katz by hand: bigrams, K = 2") {
  // Bigrams by count:  1: <s> b, a c, b a, c </s>, a </s>   2: a b, b </s>   3: <s> a
  //   n_1 = 5, n_2 = 2, n_3 = 1
  //   rho = 3 n_3 / (1 n_1)                      = 3/5
  //   d_1 = (2 n_2 / n_1 - rho) / (1 - rho)      = (4/5 - 3/5) / (2/5)      = 0.5
  //   d_2 = (3 n_3 / n_2 / 2 - rho) / (1 - rho)  = (3/4 - 3/5) / (2/5)      = 0.375
  //   d_3 = 0.999, above K
  TrainReport report;
  const auto lm =
      BackoffLm::FromTrie(Train(kWorked, MakeVocabulary(3, {}), Options(2, 2), &report));
  CHECK(report.warnings.empty());
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-6); };
  // 12 events: a 4, b 3, c 1, </s> 4.
  CHECK(Prob(*lm, {}, kA) == near(4.0 / 12));
  CHECK(Prob(*lm, {}, kEos) == near(4.0 / 12));
  CHECK(Prob(*lm, {}, kC) == near(1.0 / 12));
  CHECK(Prob(*lm, {kBos}, kA) == near(0.999 * 3 / 4));
  CHECK(Prob(*lm, {kBos}, kB) == near(0.5 * 1 / 4));
  CHECK(Prob(*lm, {kA}, kB) == near(0.375 * 2 / 4));
  CHECK(Prob(*lm, {kA}, kEos) == near(0.5 * 1 / 4));
  CHECK(Prob(*lm, {kB}, kEos) == near(0.375 * 2 / 3));
  // a: b, c and </s> stored.  bow(a) = (1 - 0.1875 - 0.125 - 0.125) / (1 - 3/12 - 1/12 - 4/12)
  CHECK(Prob(*lm, {kA}, kA) == near(0.5625 / (4.0 / 12) * 4 / 12));
  // b: a and </s> stored.     bow(b) = (1 - 0.5/3 - 0.25) / (1 - 4/12 - 4/12) = 1.75
  CHECK(Prob(*lm, {kB}, kC) == near(1.75 * 1 / 12));
  // c: </s> stored.           bow(c) = (1 - 0.5) / (1 - 4/12) = 0.75
  CHECK(Prob(*lm, {kC}, kB) == near(0.75 * 3 / 12));
  CHECK(WorstSum(*lm) < 1e-6);
}

TEST_CASE("minimum counts leave C(h) and, by default, the discounts as they were") {
  TrainReport report;
  KatzOptions options = Options(2, 2);
  options.min_counts = {1, 2};
  auto lm = BackoffLm::FromTrie(Train(kWorked, MakeVocabulary(3, {}), options, &report));
  CHECK(lm->levels()[1].size() == 3);  // <s> a, a b, b </s>
  CHECK(Prob(*lm, {kA}, kB) == doctest::Approx(0.375 * 2 / 4).epsilon(1e-6));
  // bow(a) = (1 - 0.1875) / (1 - 3/12)
  CHECK(Prob(*lm, {kA}, kC) == doctest::Approx(0.8125 / 0.75 / 12).epsilon(1e-6));
  CHECK(report.warnings.empty());

  // Of the pruned counts n_1 = 0, n_2 = 2, n_3 = 1: rho = 3 / (2 * 2), r* = 3/2, d_2 = 0.
  options.full_count_of_counts = false;
  lm = BackoffLm::FromTrie(Train(kWorked, MakeVocabulary(3, {}), options, &report));
  CHECK(Prob(*lm, {kA}, kB) == doctest::Approx(0.999 * 2 / 4).epsilon(1e-6));
  REQUIRE(report.warnings.size() == 1);
  CHECK(report.warnings[0].find("order 2") != std::string::npos);
  CHECK(report.warnings[0].find("n_1..n_3 = 0, 2, 1") != std::string::npos);
  CHECK(report.warnings[0].find("count 2 has discount 0 outside (0, 1)") != std::string::npos);
  CHECK(WorstSum(*lm) < 1e-6);
}

TEST_CASE("Good-Turing leaves out counts of counts that are 0, and says so") {
  CountOfCounts n{};
  n[1] = 4;  // four singletons: r* = 2 / n_1 = 0.5, rho = 0
  CHECK(ComputeGoodTuring(n, 5)(1) == doctest::Approx(0.5));
  CHECK(ComputeGoodTuring(n, 5)(2) == 0.999);  // r* = 3
  CHECK(ComputeGoodTuring(n, 5)(6) == 0.999);
  CHECK(DescribeViolations(3, n, n, 5).find("count 1 has discount 0.5 although n_2 is 0") !=
        std::string::npos);
  CHECK(ComputeGoodTuring({}, 5)(1) == 0.999);
}

TEST_CASE("unseen vocabulary costs 1000, <s> has no probability, seen token ids may be special") {
  const Trie trie = Train({{0, 1}, {1, 1}}, MakeVocabulary(4, {}), Options(2, 5), nullptr);
  CHECK(trie.levels[0].log_prob[2] == -kUnseenCost);
  CHECK(trie.levels[0].log_prob[trie.vocabulary.unk] == -kUnseenCost);
  CHECK(trie.levels[0].log_prob[trie.vocabulary.bos] == kNeverLogProb);
  // One id for both boundaries, as GPT-2 has it: 3 is an event (</s>) and a context (<s>).
  const Vocabulary shared = MakeVocabulary(4, {3, 3, std::nullopt});
  const Trie same = Train({{3, 0, 1, 3}, {1, 1}}, shared, Options(2, 5), nullptr);
  CHECK(std::exp(same.levels[0].log_prob[3]) == doctest::Approx(2.0 / 6));
}

TEST_CASE("where every word follows, what is taken off goes to </s>") {
  // After a come a and </s>, which is the whole vocabulary in use.
  const auto lm = BackoffLm::FromTrie(
      Train({{0, 0, 0, 0, 0, 0}}, MakeVocabulary(1, {}), Options(2, 5), nullptr));
  CHECK(Prob(*lm, {0}, 0) == doctest::Approx(0.999 * 5 / 6).epsilon(1e-6));
  CHECK(Prob(*lm, {0}, 2) == doctest::Approx(1 - 0.999 * 5 / 6).epsilon(1e-6));
  CHECK(lm->levels()[0].Backoff(0) == kNoBackoff);
}

TEST_CASE("sums are 1 where the words not stored have next to no mass") {
  // c once in 1.1e9 events; after a never. 1 - P(a) - P(</s>) would be rounding alone.
  CountTrie counts{MakeVocabulary(2, {}), std::vector<CountLevel>(2)};
  counts.levels[0].count = {1000000000, 1, 0, 100000000, 0};
  counts.levels[0].context_count = {1000000000, 1, 0, 0, 0};
  counts.levels[0].child_begin = {0, 2, 3, 3, 3, 3};
  counts.levels[1].word = {0, 3, 0};
  counts.levels[1].count = {900000000, 100000000, 1};
  const std::vector<CountOfCounts> n = CountCountsOfLevels(counts);
  const auto lm = BackoffLm::FromTrie(EstimateKatz(std::move(counts), n, Options(2, 5), nullptr));
  CHECK(WorstSum(*lm) < 1e-6);
}

TEST_CASE("every context of random corpora sums to 1") {
  for (unsigned seed = 0; seed < 80; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int vocab_size = 1 + static_cast<int>(random() % 12);
    Sequences sequences(1 + random() % 60);
    for (auto& sequence : sequences) {
      sequence.resize(random() % 12);
      for (TokenId& id : sequence)
        id = static_cast<TokenId>(random() % vocab_size * (random() % 2));
    }
    sequences[0].push_back(0);
    KatzOptions options = Options(1 + static_cast<int>(random() % 6), 1 + random() % 32);
    options.full_count_of_counts = random() % 2 == 0;
    for (int n = 0; n < options.order; ++n) options.min_counts.push_back(1 + random() % 3);
    const auto lm =
        BackoffLm::FromTrie(Train(sequences, MakeVocabulary(vocab_size, {}), options, nullptr));
    CHECK(WorstSum(*lm) < 1e-5);
  }
}

TEST_CASE("an order without n-grams is reported; options out of range are refused") {
  TrainReport report;
  const Trie trie = Train({{0}}, MakeVocabulary(1, {}), Options(5, 5), &report);
  CHECK(trie.order() == 3);  // <s> a </s>
  REQUIRE(!report.warnings.empty());
  CHECK(report.warnings[0].find("LM has order 3 instead of 5") != std::string::npos);
  const Vocabulary vocabulary = MakeVocabulary(3, {});
  CHECK_THROWS_AS(Train(kWorked, vocabulary, Options(2, 0), nullptr), ValueError);
  CHECK_THROWS_AS(Train(kWorked, vocabulary, Options(2, 33), nullptr), ValueError);
  CHECK_THROWS_AS(Train(kWorked, vocabulary, Options(7, 5), nullptr), ValueError);
  KatzOptions options = Options(2, 5);
  options.min_counts = {1, 1, 1};
  CHECK_THROWS_AS(Train(kWorked, vocabulary, options, nullptr), ValueError);
}

}  // namespace lattice_bpd
