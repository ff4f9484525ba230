// Katz estimation: an example with its arithmetic, edge corpora; smoothing_test.cc has the sums.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/good_turing.h"
#include "lm_laws.h"

namespace lattice_bpd {
namespace {

// a b / a b / a c / b a, with a = 0, b = 1, c = 2, <s> = 3, </s> = 4.
const Sequences kWorked = {{0, 1}, {0, 1}, {0, 2}, {1, 0}};
constexpr Symbol kA = 0, kB = 1, kC = 2, kBos = 3, kEos = 4;

EstimateOptions Options(int order, int katz_k) {
  EstimateOptions options;
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
      BackoffLm::FromTrie(TrainOn(kWorked, MakeVocabulary(3, {}), Options(2, 2), &report));
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
  EstimateOptions options = Options(2, 2);
  options.min_counts = {1, 2};
  auto lm = BackoffLm::FromTrie(TrainOn(kWorked, MakeVocabulary(3, {}), options, &report));
  CHECK(lm->levels()[1].size() == 3);  // <s> a, a b, b </s>
  CHECK(Prob(*lm, {kA}, kB) == doctest::Approx(0.375 * 2 / 4).epsilon(1e-6));
  // bow(a) = (1 - 0.1875) / (1 - 3/12)
  CHECK(Prob(*lm, {kA}, kC) == doctest::Approx(0.8125 / 0.75 / 12).epsilon(1e-6));
  CHECK(report.warnings.empty());

  // Of the pruned counts n_1 = 0, n_2 = 2, n_3 = 1: rho = 3 / (2 * 2), r* = 3/2, d_2 = 0.
  options.full_count_of_counts = false;
  lm = BackoffLm::FromTrie(TrainOn(kWorked, MakeVocabulary(3, {}), options, &report));
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
  const Trie trie = TrainOn({{0, 1}, {1, 1}}, MakeVocabulary(4, {}), Options(2, 5));
  CHECK(trie.levels[0].log_prob[2] == -kUnseenCost);
  CHECK(trie.levels[0].log_prob[trie.vocabulary.unk] == -kUnseenCost);
  CHECK(trie.levels[0].log_prob[trie.vocabulary.bos] == kNeverLogProb);
  // One id for both boundaries, as GPT-2 has it: 3 is an event (</s>) and a context (<s>).
  const Vocabulary shared = MakeVocabulary(4, {3, 3, std::nullopt});
  const Trie same = TrainOn({{3, 0, 1, 3}, {1, 1}}, shared, Options(2, 5));
  CHECK(std::exp(same.levels[0].log_prob[3]) == doctest::Approx(2.0 / 6));
}

TEST_CASE("where every word follows, what is taken off goes to </s>") {
  // After a come a and </s>, which is the whole vocabulary in use.
  const auto lm =
      BackoffLm::FromTrie(TrainOn({{0, 0, 0, 0, 0, 0}}, MakeVocabulary(1, {}), Options(2, 5)));
  CHECK(Prob(*lm, {0}, 0) == doctest::Approx(0.999 * 5 / 6).epsilon(1e-6));
  CHECK(Prob(*lm, {0}, 2) == doctest::Approx(1 - 0.999 * 5 / 6).epsilon(1e-6));
  CHECK(lm->levels()[0].Backoff(0) == kNoBackoff);
}

}  // namespace lattice_bpd
