// The store of a mixture and threads; test_mixture.py compares trees with an oracle.
#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

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

}  // namespace
}  // namespace lattice_bpd
