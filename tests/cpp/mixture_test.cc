// The store of a mixture and threads; test_mixture.py compares trees with an oracle,
// test_vllm_lengths.py lengths with the best ones.
#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/mixture/draft_lengths.h"
#include "lattice_bpd/mixture/mixture_search.h"

namespace lattice_bpd {
namespace {

using Ids = std::vector<std::int64_t>;

Ids SearchAfter(const std::shared_ptr<const Mixture>& mixture, const Ids& text) {
  SearchLimits limits;
  limits.max_nodes = limits.max_depth = 2;
  MixtureText of_text(mixture);
  of_text.Append(text);
  return of_text.Search(HeadCandidates(), limits).token_ids();
}

TEST_CASE("mixture: a store is read while another thread adds to it, and keeps its limit") {
  const auto store = std::make_shared<TextStore>(40);
  Mixture::Options options;
  options.vocab_size = 20;
  options.store = store;
  const auto mixture = std::make_shared<const Mixture>(std::move(options), GateWeights());
  const std::vector<TokenId> text = {1, 2, 3, 4, 5, 6, 7, 8};
  store->Add(text);
  std::thread writer([&store, &text] {
    for (int n = 0; n < 500; ++n) store->Add(text);
  });
  for (int n = 0; n < 500; ++n) {
    CHECK(SearchAfter(mixture, {2, 3, 4}) == Ids{4, 5, 6});
  }
  writer.join();
  CHECK(store->Tokens().size() == 40);
}

TEST_CASE("draft lengths: probabilities are those of what was accepted") {
  AcceptanceCalibration calibration;
  const std::vector<double> said = {0.9, 0.7, 0.3};
  CHECK(calibration.Adjust(said) == said);  // nothing is known
  for (int n = 0; n < 400; ++n) calibration.Observe(said, n % 2 == 0 ? 3 : n % 10 == 1 ? 0 : 1);
  const std::vector<double> adjusted = calibration.Adjust(said);
  CHECK(adjusted[0] == doctest::Approx(0.9).epsilon(0.05));
  CHECK(adjusted[1] == doctest::Approx(0.5).epsilon(0.05));
  CHECK(adjusted[2] == doctest::Approx(0.5).epsilon(0.05));  // no more than a shorter prefix
}

TEST_CASE("draft lengths: arguments of different lengths are refused") {
  DraftLengths lengths(4, false, true);
  CHECK_THROWS_AS(lengths.Observe({"a"}, std::vector<int>{1, 1}, {}, 0.0), ValueError);
  CHECK_THROWS_AS(lengths.Observe({"a", "b"}, std::vector<int>{1, 1}, std::vector<int>{1}, 0.0),
                  ValueError);
  MixtureText* none = nullptr;
  const std::vector<int> requests = {0};
  const std::vector<std::int32_t> most = {4};
  CHECK_THROWS_AS(lengths.Draft({}, requests, most, {}, 0.0, 1), ValueError);
  CHECK_THROWS_AS(lengths.Draft({none}, requests, most, {}, 0.0, 1),
                  ValueError);  // no such request
}

}  // namespace
}  // namespace lattice_bpd
