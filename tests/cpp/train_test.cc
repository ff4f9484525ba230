// Estimation by each smoothing: an example with its arithmetic, edge corpora, the law of sums.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/discounts.h"
#include "lattice_bpd/train/good_turing.h"
#include "lm_laws.h"

namespace lattice_bpd {
namespace {

// a b / a b / a c / b a, with a = 0, b = 1, c = 2, <s> = 3, </s> = 4, <unk> = 5. Bigrams by count:
//   1: <s> b, a c, b a, c </s>, a </s>     2: a b, b </s>     3: <s> a       n_1 = 5, n_2 = 2
const Sequences kWorked = {{0, 1}, {0, 1}, {0, 2}, {1, 0}};
constexpr Symbol kA = 0, kB = 1, kC = 2, kBos = 3, kEos = 4;

EstimateOptions Options(int order, int katz_k) {
  EstimateOptions options;
  options.order = order;
  options.katz_k = katz_k;
  options.threads = 2;
  return options;
}

EstimateOptions Bigrams(Smoothing smoothing) {
  EstimateOptions options;
  options.order = 2;
  options.threads = 2;
  options.smoothing = smoothing;
  return options;
}

std::shared_ptr<const BackoffLm> Worked(const EstimateOptions& options) {
  return BackoffLm::FromTrie(TrainOn(kWorked, MakeVocabulary(3, {}), options));
}

doctest::Approx Near(double value) { return doctest::Approx(value).epsilon(1e-6); }

}  // namespace

TEST_CASE("Katz by hand: bigrams, K = 2") {
  //   rho = 3 n_3 / (1 n_1) = 3 * 1 / (1 * 5)     = 3/5
  //   d_1 = (2 n_2 / n_1 - rho) / (1 - rho)      = (4/5 - 3/5) / (2/5)      = 0.5
  //   d_2 = (3 n_3 / n_2 / 2 - rho) / (1 - rho)  = (3/4 - 3/5) / (2/5)      = 0.375
  //   d_3 = 0.999, above K
  TrainReport report;
  const auto lm =
      BackoffLm::FromTrie(TrainOn(kWorked, MakeVocabulary(3, {}), Options(2, 2), &report));
  CHECK(report.warnings.empty());
  // 12 events: a 4, b 3, c 1, </s> 4.
  CHECK(Prob(*lm, {}, kA) == Near(4.0 / 12));
  CHECK(Prob(*lm, {}, kEos) == Near(4.0 / 12));
  CHECK(Prob(*lm, {}, kC) == Near(1.0 / 12));
  CHECK(Prob(*lm, {kBos}, kA) == Near(0.999 * 3 / 4));
  CHECK(Prob(*lm, {kBos}, kB) == Near(0.5 * 1 / 4));
  CHECK(Prob(*lm, {kA}, kB) == Near(0.375 * 2 / 4));
  CHECK(Prob(*lm, {kA}, kEos) == Near(0.5 * 1 / 4));
  CHECK(Prob(*lm, {kB}, kEos) == Near(0.375 * 2 / 3));
  // a: b, c and </s> stored.  bow(a) = (1 - 0.1875 - 0.125 - 0.125) / (1 - 3/12 - 1/12 - 4/12)
  CHECK(Prob(*lm, {kA}, kA) == Near(0.5625 / (4.0 / 12) * 4 / 12));
  // b: a and </s> stored.     bow(b) = (1 - 0.5/3 - 0.25) / (1 - 4/12 - 4/12) = 1.75
  CHECK(Prob(*lm, {kB}, kC) == Near(1.75 * 1 / 12));
  // c: </s> stored.           bow(c) = (1 - 0.5) / (1 - 4/12) = 0.75
  CHECK(Prob(*lm, {kC}, kB) == Near(0.75 * 3 / 12));
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

TEST_CASE("Kneser-Ney by hand: bigrams") {
  const auto lm = Worked(Bigrams(Smoothing::kKneserNey));
  // Symbols seen before:  a: <s> b   b: <s> a   c: a   </s>: a b c      8 different bigrams
  CHECK(Prob(*lm, {}, kA) == Near(2.0 / 8));
  CHECK(Prob(*lm, {}, kC) == Near(1.0 / 8));
  CHECK(Prob(*lm, {}, kEos) == Near(3.0 / 8));
  // D = n_1 / (n_1 + 2 n_2) = 5/9.  After a: b twice, c, </s>, so g(a) = 3 D / 4 = 5/12.
  CHECK(Prob(*lm, {kA}, kB) == Near((2 - 5.0 / 9) / 4 + 5.0 / 12 * 2 / 8));
  CHECK(Prob(*lm, {kA}, kEos) == Near((1 - 5.0 / 9) / 4 + 5.0 / 12 * 3 / 8));
  CHECK(Prob(*lm, {kA}, kA) == Near(5.0 / 12 * 2 / 8));
  CHECK(WorstSum(*lm) < 1e-6);
}

TEST_CASE("absolute discounting by hand: bigrams; test_ngram_lm.py has Witten-Bell") {
  const auto absolute = Worked(Bigrams(Smoothing::kAbsolute));
  CHECK(Prob(*absolute, {kA}, kB) == Near((2 - 5.0 / 9) / 4 + 5.0 / 12 * 3 / 12));
  CHECK(Prob(*absolute, {kBos}, kC) == Near(2 * 5.0 / 9 / 4 * 1 / 12));
}

TEST_CASE("minimum counts: what goes is left to the lower order") {
  EstimateOptions options = Bigrams(Smoothing::kKneserNey);
  options.min_counts = {1, 2};
  const auto lm = Worked(options);  // <s> a, a b, b </s>
  CHECK(lm->levels()[1].size() == 3);
  // D and unigrams as before; g(a) = 1 - (2 - 5/9) / 4 = 23/36.
  CHECK(Prob(*lm, {kA}, kB) == Near(13.0 / 36 + 23.0 / 36 * 2 / 8));
  CHECK(Prob(*lm, {kA}, kC) == Near(23.0 / 36 * 1 / 8));
  CHECK(WorstSum(*lm) < 1e-6);
}

TEST_CASE("unseen vocabulary by a uniform share") {
  EstimateOptions options = Bigrams(Smoothing::kKatz);
  options.unseen = Unseen::kUniform;
  const Vocabulary vocabulary = MakeVocabulary(5, {});  // 3 and 4 never occur; <s> 5, </s> 6
  const auto lm = BackoffLm::FromTrie(TrainOn(kWorked, vocabulary, options));
  // Unigram counts a 4, b 3, c 1, </s> 4: n_1 = 1, n_2 = 0, so D = 0.6. Seven events.
  const double share = 0.6 * 4 / 12 / 7;
  CHECK(Prob(*lm, {}, kA) == Near((4 - 0.6) / 12 + share));
  CHECK(Prob(*lm, {}, 3) == Near(share));
  CHECK(Prob(*lm, {}, vocabulary.unk) == Near(share));
  CHECK(lm->levels()[0].LogProb(vocabulary.bos) == kNeverLogProb);
  CHECK(WorstSum(*lm) < 1e-6);
}

TEST_CASE("three discounts: Chen and Goodman's formula, and its fallback") {
  CountOfCounts n{};
  n[1] = 10, n[2] = 5, n[3] = 3, n[4] = 2;  // Y = 10 / 20
  TrainReport report;
  const AbsoluteDiscounts discounts = ThreeDiscounts(2, n, &report);
  CHECK(discounts(0) == 0.0);
  CHECK(discounts(1) == Near(1 - 2 * 0.5 * 5 / 10));
  CHECK(discounts(2) == Near(2 - 3 * 0.5 * 3 / 5));
  CHECK(discounts(3) == Near(3 - 4 * 0.5 * 2 / 3));
  CHECK(discounts(1000) == discounts(3));
  CHECK(report.warnings.empty());
  n[2] = 0;
  CHECK(ThreeDiscounts(2, n, &report)(3) == 1.5);
  REQUIRE(report.warnings.size() == 1);
  CHECK(report.warnings[0].find("order 2") != std::string::npos);
  CHECK(report.warnings[0].find("10, 0, 3, 2") != std::string::npos);
  CHECK(OneDiscount(n)(7) == 0.6);
}

TEST_CASE("every context of random corpora sums to 1, whatever the smoothing") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int vocab_size = 1 + static_cast<int>(random() % 12);
    const Sequences sequences = RandomCorpus(vocab_size, &random);
    EstimateOptions options;
    options.smoothing = static_cast<Smoothing>(seed % 5);
    options.unseen = random() % 2 == 0 ? Unseen::kCost : Unseen::kUniform;
    options.order = 1 + static_cast<int>(random() % 5);
    options.full_count_of_counts = random() % 2 == 0;
    for (int n = 0; n < options.order; ++n) options.min_counts.push_back(1 + random() % 3);
    const Vocabulary vocabulary = MakeVocabulary(vocab_size + random() % 3, {});
    const auto lm = BackoffLm::FromTrie(TrainOn(sequences, vocabulary, options));
    CHECK(WorstSum(*lm) < 1e-5);
  }
}

}  // namespace lattice_bpd
