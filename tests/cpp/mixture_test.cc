// Trees of a mixture: a digest that is the same for every platform; the store and threads.
#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/mixture/mixture_search.h"
#include "lattice_bpd/mixture/text_successors.h"
#include "random_lattices.h"

namespace lattice_bpd {
namespace {

constexpr std::uint32_t kVocab = 20;
using Ids = std::vector<std::int64_t>;

Ids RandomText(Random* random, std::size_t length) {
  Ids text;
  while (text.size() < length) {
    if (text.size() > 4 && Below(random, 3) > 0) {  // repeats a part of itself
      const std::size_t start = Below(random, static_cast<std::uint32_t>(text.size() - 3));
      for (std::size_t i = 0; i < 3; ++i) text.push_back(text[start + i]);
    } else {
      text.push_back(Below(random, kVocab));
    }
  }
  text.resize(length);
  return text;
}

struct Heads {
  std::vector<TokenId> token_ids;
  std::vector<float> log_probs;

  explicit Heads(Random* random) {
    for (int slot = 0; slot < 3; ++slot) {
      const std::uint32_t first = Below(random, kVocab);
      for (std::uint32_t c = 0; c < 4; ++c) {
        token_ids.push_back(static_cast<TokenId>((first + 3 * c) % kVocab));
        log_probs.push_back(-0.7f - static_cast<float>(c) - 0.1f * Below(random, 5));
      }
    }
  }
  HeadCandidates view() const { return {token_ids.data(), log_probs.data(), nullptr, 3, 4}; }
};

std::shared_ptr<const Mixture> MakeMixture(bool heads, std::shared_ptr<TextStore> store = nullptr) {
  Mixture::Options options;
  options.vocab_size = kVocab;
  options.has_heads = heads;
  options.store = std::move(store);
  options.learning_rate = 0.1;
  return std::make_shared<const Mixture>(std::move(options), GateWeights());
}

SearchLimits Limits(int max_nodes, int max_depth, bool is_chain = false) {
  SearchLimits limits;
  limits.max_nodes = max_nodes;
  limits.max_depth = max_depth;
  limits.is_chain = is_chain;
  return limits;
}

PrefixTree SearchAfter(const std::shared_ptr<const Mixture>& mixture, const Ids& text,
                       const Heads* heads, const SearchLimits& limits) {
  MixtureText of_text(mixture);
  of_text.Append(text);
  return of_text.Search(heads == nullptr ? HeadCandidates() : heads->view(), limits);
}

TEST_CASE("mixture: the digest of random trees") {
  Random random(7);
  const auto mixture = MakeMixture(true);
  std::uint64_t digest = 0xcbf29ce484222325u;
  const auto add = [&digest](std::uint64_t word) { digest = (digest ^ word) * 0x100000001b3u; };
  for (int n = 0; n < 200; ++n) {
    const Ids text = RandomText(&random, 1 + Below(&random, 80));
    const Heads heads(&random);
    const int max_nodes = 1 + static_cast<int>(Below(&random, 40));
    const int max_depth = 1 + static_cast<int>(Below(&random, 9));
    const SearchLimits limits = Limits(max_nodes, max_depth, n % 4 == 0);
    const PrefixTree tree = SearchAfter(mixture, text, &heads, limits);
    for (const std::int64_t token : tree.token_ids()) add(static_cast<std::uint64_t>(token));
    for (const NodeNumber parent : tree.parents()) add(static_cast<std::uint64_t>(parent + 1));
  }
  CHECK(digest == 0xc22b8bc0a47ac0f7u);
}

TEST_CASE("mixture: a store is read while another thread adds to it, and keeps its limit") {
  const auto store = std::make_shared<TextStore>(40);
  const auto mixture = MakeMixture(false, store);
  const std::vector<TokenId> text = {1, 2, 3, 4, 5, 6, 7, 8};
  store->Add(text);
  std::thread writer([&store, &text] {
    for (int n = 0; n < 500; ++n) store->Add(text);
  });
  for (int n = 0; n < 500; ++n) {
    CHECK(SearchAfter(mixture, {2, 3, 4}, nullptr, Limits(2, 2)).token_ids() == Ids{4, 5, 6});
  }
  writer.join();
  CHECK(store->Tokens().size() == 40);
}

}  // namespace
}  // namespace lattice_bpd
