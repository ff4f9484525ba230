// Batches: drafts and trees of many lattices are the same bytes on any number of threads, also
// when several threads call at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "allocation_counter.h"
#include "lattice_bpd/draft/draft_batch.h"
#include "lattice_bpd/draft/tree_batch.h"
#include "random_lattices.h"

namespace lattice_bpd {
namespace {

constexpr std::uint32_t kTokens = 60;
constexpr std::size_t kBatch = 40;
constexpr std::size_t kSlots = 5;
constexpr std::size_t kTopK = 12;

// A batch of candidates with contexts of 0 to 4 tokens.
struct Example {
  std::shared_ptr<const BackoffLm> lm;
  std::vector<TokenId> token_ids;
  std::vector<float> scores;
  std::vector<TokenId> contexts;
  std::vector<std::int64_t> offsets = {0};

  explicit Example(std::uint32_t seed) {
    Random random(seed);
    lm = RandomLm(&random, 200, kTokens, 4, 3000, seed % 2 == 0);
    for (std::size_t row = 0; row < kBatch * kSlots; ++row) {
      const std::uint32_t first = Below(&random, kTokens);  // 7 and kTokens have no common divisor
      for (std::uint32_t i = 0; i < kTopK; ++i) {
        token_ids.push_back(static_cast<TokenId>((first + 7 * i) % kTokens));
        scores.push_back(-static_cast<float>(i) / 4.0f);
      }
    }
    for (std::size_t b = 0; b < kBatch; ++b) {
      for (std::uint32_t n = Below(&random, 5); n > 0; --n) {
        contexts.push_back(static_cast<TokenId>(Below(&random, kTokens)));
      }
      offsets.push_back(static_cast<std::int64_t>(contexts.size()));
    }
  }

  LatticeBatch lattices() const {
    return CandidatesView{token_ids.data(), scores.data(), kBatch, kSlots, kTopK};
  }
  ContextsView contexts_view() const { return {contexts, offsets, true}; }

  DraftBatch Drafts(Engine engine, int threads) const {
    return FindDraftBatch(lattices(), lm.get(), contexts_view(), {8, 0.5, engine}, threads);
  }
  TreeBatch Trees(int threads) const {
    return FindTreeBatch(lattices(), lm.get(), contexts_view(), 0.5, 20, threads);
  }
};

bool Same(const DraftBatch& a, const DraftBatch& b) {
  return a.token_ids == b.token_ids && a.scores == b.scores && a.counts == b.counts;
}

bool Same(const TreeBatch& a, const TreeBatch& b) {
  return a.token_ids == b.token_ids && a.parents == b.parents && a.log_probs == b.log_probs &&
         a.counts == b.counts && a.leaf_paths == b.leaf_paths;
}

// The fewest allocations of a warm call: a helper thread may still grow its buffers in the first.
template <typename Call>
std::uint64_t CountAllocations(const Call& call) {
  std::uint64_t least = ~std::uint64_t{0};
  for (int i = 0; i < 20; ++i) {
    const AllocationCounter counter;
    call();
    least = std::min(least, counter.num_allocations());
  }
  return least;
}

TEST_CASE("drafts and trees of a warm batch: no allocation for a lattice") {
  const Example example(0);
  const DraftOptions options{8, 0.5, Engine::kFused};
  const auto count = [&](std::size_t batch, int threads, bool trees) {
    const LatticeBatch lattices =
        CandidatesView{example.token_ids.data(), example.scores.data(), batch, kSlots, kTopK};
    const Span<std::int64_t> offsets(example.offsets.data(), batch + 1);
    const ContextsView contexts{example.contexts, offsets, true};
    return CountAllocations([&] {
      if (trees) {
        FindTreeBatch(lattices, example.lm.get(), contexts, 0.5, 20, threads);
      } else {
        FindDraftBatch(lattices, example.lm.get(), contexts, options, threads);
      }
    });
  };
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    CHECK(count(kBatch, threads, false) == count(kBatch / 2, threads, false));
    CHECK(count(kBatch, threads, true) == count(kBatch / 2, threads, true));
  }
}

TEST_CASE("the same bytes on 1, 2 and 8 threads, from both engines") {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    const Example example(seed);
    const DraftBatch drafts = example.Drafts(Engine::kOpenFst, 1);
    const TreeBatch trees = example.Trees(1);
    for (const int threads : {1, 2, 8}) {
      CHECK(Same(example.Drafts(Engine::kFused, threads), drafts));
      CHECK(Same(example.Drafts(Engine::kOpenFst, threads), drafts));
      CHECK(Same(example.Trees(threads), trees));
    }
  }
}

TEST_CASE("callers at once, each with threads of its own") {
  const Example example(7);
  const DraftBatch drafts = example.Drafts(Engine::kFused, 1);
  const TreeBatch trees = example.Trees(1);
  std::vector<int> right(4);
  std::vector<std::thread> callers;
  for (int& count : right) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 10; ++repeat) {
        count += Same(example.Drafts(Engine::kFused, 2), drafts) && Same(example.Trees(2), trees);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(right == std::vector<int>(4, 10));
}

}  // namespace
}  // namespace lattice_bpd
