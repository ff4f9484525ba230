// Quantised LMs: the stated error and its file; the small packing.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/lm_file.h"
#include "lattice_bpd/lm/quantise.h"
#include "lattice_bpd/lm/unpack.h"
#include "lm_examples.h"
#include "lm_laws.h"

namespace lattice_bpd {
namespace {

std::shared_ptr<const BackoffLm> TrainedLm(unsigned seed, Packing packing) {
  std::mt19937 random(seed);
  const int vocab_size = 1 + static_cast<int>(random() % 12);
  EstimateOptions options;
  options.order = 1 + static_cast<int>(random() % 5);
  const Vocabulary vocabulary = MakeVocabulary(vocab_size + 2, {});
  return BackoffLm::FromTrie(TrainOn(RandomCorpus(vocab_size, &random), vocabulary, options),
                             packing);
}

// Token 0 is followed by every token, and every token by token 0: the first group of 32 unigrams
// has more than 255 children, the others have 32 each.
std::shared_ptr<const BackoffLm> FanLm(Packing packing) {
  Sequences sequences;
  for (TokenId id = 0; id < 3000; ++id) sequences.push_back({0, id});
  EstimateOptions options;
  options.order = 3;
  return BackoffLm::FromTrie(TrainOn(sequences, MakeVocabulary(3000, {}), options), packing);
}

void CheckSameTrie(const BackoffLm& a, const BackoffLm& b) {
  const Trie left = UnpackLm(a);
  const Trie right = UnpackLm(b);
  REQUIRE(left.order() == right.order());
  for (int m = 0; m < left.order(); ++m) {
    CHECK(left.levels[m].word == right.levels[m].word);
    CHECK(left.levels[m].log_prob == right.levels[m].log_prob);
    CHECK(left.levels[m].backoff == right.levels[m].backoff);
    CHECK(left.levels[m].child_begin == right.levels[m].child_begin);
    CHECK(left.levels[m].log_prob_error == right.levels[m].log_prob_error);
    if (m + 1 == left.order()) continue;
    std::size_t wrong = 0;
    for (std::uint32_t i = 0; i < left.levels[m].size(); ++i) {
      wrong += a.levels()[m].Children(i) != b.levels()[m].Children(i);
    }
    CHECK(wrong == 0);
  }
}

float LargestChange(const std::vector<float>& before, const std::vector<float>& after) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < before.size(); ++i) {
    largest = std::max(largest, std::abs(before[i] - after[i]));
  }
  return largest;
}

}  // namespace

TEST_CASE("k-means by hand: four values, two codes") {
  std::vector<float> values = {-1.0f, -1.0f, -1.25f, -4.0f, -5.0f, -1000.0f, 0.0f, -1.0f};
  // Eight codes and more: nothing to do. Of 2 codes none is left for "special" numbers.
  std::vector<float> same = values;
  CHECK(QuantiseValues(6, &same) == 0.0f);
  CHECK(same == values);
  std::vector<float> plain = {-1.0f, -1.0f, -1.5f, -4.0f, -5.0f, -1.0f};
  // Means of {-1, -1, -1, -1.5} and {-4, -5}.
  CHECK(QuantiseValues(2, &plain) == 0.5f);
  CHECK(plain == std::vector<float>{-1.125f, -1.125f, -1.125f, -4.5f, -4.5f, -1.125f});
}

TEST_CASE("every stored number is within the stated error, and saying so survives the file") {
  TemporaryFolder folder;
  const std::string path = folder.File("q.lm");
  for (const int bits : {8, 12, 16}) {
    CAPTURE(bits);
    const auto exact = FanLm(Packing::kFast);
    const auto quantised = QuantiseLm(*exact, bits);
    SaveLm(*quantised, path);
    const auto loaded = LoadLm(path, std::nullopt);
    CheckSameTrie(*quantised, *loaded);
    const Trie before = UnpackLm(*exact);
    const Trie after = UnpackLm(*loaded);
    for (int m = 0; m < before.order(); ++m) {
      const LevelForm& form = loaded->levels()[m].form;
      CHECK(LargestChange(before.levels[m].log_prob, after.levels[m].log_prob) ==
            form.log_prob_error);
      CHECK(LargestChange(before.levels[m].backoff, after.levels[m].backoff) == form.backoff_error);
      CHECK(form.log_prob_bytes <= (bits == 8 ? 1 : 2));
    }
  }
  CHECK_THROWS_WITH_AS(QuantiseLm(*FanLm(Packing::kFast), 9), doctest::Contains("bits is 9"),
                       ValueError);
}

TEST_CASE("small packing: the same LM, with wide groups and without") {
  const auto fan = FanLm(Packing::kSmall);
  CHECK(fan->levels()[0].form.child_bytes == 1);
  CHECK(fan->levels()[0].wide_children.size() == kChildBaseStride);
  CHECK(fan->levels()[1].form.child_bytes == 1);
  CheckSameTrie(*FanLm(Packing::kFast), *fan);
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    CheckSameTrie(*TrainedLm(seed, Packing::kFast), *TrainedLm(seed, Packing::kSmall));
  }
}

}  // namespace lattice_bpd
