// Digests of answers for random lattices, the same for every instruction set and platform. The
// constants come from x86-64; `make test-arm` compares an emulated ARM processor with them.
//
// Scores and masses are on the grid and computed in a fixed order, so their bits are part of the
// digests. Where the C library's log and exp take part (samples), only tokens and shapes
// are: these functions may differ in the last bit.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/draft/sample_tree.h"
#include "random_lattices.h"

namespace lattice_bpd {
namespace {

// FNV-1a over 64-bit words.
class Digest {
 public:
  void Add(std::uint64_t word) { bits_ = (bits_ ^ word) * 0x100000001b3u; }
  void Add(double number) {
    const double no_negative_zero = number + 0.0;
    std::uint64_t word;
    std::memcpy(&word, &no_negative_zero, sizeof word);
    Add(word);
  }
  void Add(const DraftList& drafts) {
    for (const TokenId token : drafts.token_ids) Add(static_cast<std::uint64_t>(token));
    for (const double score : drafts.scores) Add(score);
  }
  void AddShape(const std::vector<TreeNode>& nodes) {
    Add(nodes.size());
    for (const TreeNode& node : nodes) {
      Add(static_cast<std::uint64_t>(node.token_id));
      Add(static_cast<std::uint64_t>(node.parent + 1));
    }
  }
  void Add(const std::vector<TreeNode>& nodes) {
    AddShape(nodes);
    for (const TreeNode& node : nodes) Add(node.log_prob);
  }
  std::uint64_t bits() const { return bits_; }

 private:
  std::uint64_t bits_ = 0xcbf29ce484222325u;
};

struct Digests {
  Digest lists, trees, chains, samples;
};

struct Search {
  Sausage lattice;
  const BackoffLm* lm;
  LmState start;
  double alpha;
};

void AddAnswers(const Search& search, Random* random, Digests* out) {
  const auto& [lattice, lm, start, alpha] = search;
  for (const Normalization normalization : {Normalization::kGlobal, Normalization::kLocal}) {
    DraftOptions options = {1 + static_cast<int>(Below(random, 40)), alpha, Engine::kFused};
    options.normalization = normalization;
    const int max_nodes = 1 + static_cast<int>(Below(random, 60));
    SampleOptions samples = {alpha, max_nodes};
    samples.key = Below(random, 1000);
    samples.use = Below(random, 2) == 0 ? NoiseUse::kIndependent : NoiseUse::kShared;
    samples.normalization = normalization;
    SampledTree sampled;
    SampleTree(lattice, lm, start, samples, &sampled);
    out->samples.AddShape(sampled.nodes);
    out->lists.Add(FindDrafts(lattice, lm, start, options));
    out->trees.Add(FindTree(lattice, lm, start, alpha, max_nodes, normalization));
    for (const auto objective : {ChainObjective::kAcceptLength, ChainObjective::kGreedyWalk}) {
      out->chains.Add(FindChain(lattice, lm, start, {alpha, objective, normalization}));
    }
  }
}

Digests DigestsOf(std::uint32_t first_seed, std::uint32_t seeds, std::uint32_t vocab_size) {
  Digests out;
  using Tokens = std::vector<TokenId>;
  for (std::uint32_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    Random random(seed);
    const bool exact = Below(&random, 2) == 0;
    const int order = 1 + static_cast<int>(seed % 5);
    const std::uint32_t used = 2 + Below(&random, std::min(vocab_size - 2, 150u));
    const int ngrams = static_cast<int>(Below(&random, 6000));
    const auto lm = RandomLm(&random, vocab_size, used, order, ngrams, exact);
    const Tokens text = RandomText(&random, used, 60);
    for (int trial = 0; trial < 3; ++trial) {
      const Tokens context(text.end() - static_cast<std::ptrdiff_t>(Below(&random, 6)), text.end());
      const std::uint32_t widths[] = {4, 16, 17, 33, 70};
      const double alphas[] = {1.0, 0.3, 0.0, -1.25, 16.0};
      Sausage lattice = RandomLattice(&random, used, widths[Below(&random, 5)]);
      if (Below(&random, 3) == 0) lattice = WithTransitions(&random, lattice);
      const double alpha = alphas[Below(&random, 5)];
      AddAnswers({lattice, lm.get(), lm->StateOfContext(context, false), alpha}, &random, &out);
    }
  }
  return out;
}

void CheckDigests(std::uint32_t first_seed, std::uint32_t seeds, std::uint32_t vocab_size,
                  const std::vector<std::uint64_t>& expected) {
  for (const std::string& name : FusedInstructionSets()) {
    SetFusedInstructionSet(name);
    const Digests found = DigestsOf(first_seed, seeds, vocab_size);
    INFO("instruction set ", name, ", vocabulary ", vocab_size);
    CHECK(found.lists.bits() == expected[0]);
    CHECK(found.trees.bits() == expected[1]);
    CHECK(found.chains.bits() == expected[2]);
    CHECK(found.samples.bits() == expected[3]);
  }
  SetFusedInstructionSet("");
}

// lists, trees, chains, samples
TEST_CASE("digests of answers: 2-byte keys") {
  CheckDigests(
      0, 60, 200,
      {2719773597714551892u, 17762293121632057612u, 11410126301293312248u, 12726888555502427540u});
}

TEST_CASE("digests of answers: 4-byte keys") {
  CheckDigests(
      500, 6, 70000,
      {4840791624447017187u, 6867344176382619455u, 1212229725272899571u, 16745311294488548612u});
}

}  // namespace
}  // namespace lattice_bpd
