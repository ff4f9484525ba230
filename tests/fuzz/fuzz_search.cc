// Searches: bytes become an LM, lattices with or without transitions, and options; both engines, on
// every instruction set, must give the same list, and trees and chains must be well formed.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "fuzz_input.h"
#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "random_lattices.h"

namespace lattice_bpd {

namespace {

void Expect(bool holds, const char* law, const std::string& instruction_set) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_search: %s (instruction set %s)\n", law, instruction_set.c_str());
  std::abort();
}

void CheckTree(const std::vector<TreeNode>& tree, const std::string& name) {
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const TreeNode& node = tree[i];
    Expect(node.parent < static_cast<std::int32_t>(i), "a child precedes its parent", name);
    const std::int32_t depth = node.parent < 0 ? 0 : tree[node.parent].depth + 1;
    Expect(node.depth == depth, "a node is not one deeper than its parent", name);
    Expect(i == 0 || node.log_prob <= tree[i - 1].log_prob, "masses rise", name);
  }
}

void CheckSearch(const Sausage& lattice, const BackoffLm* lm, const LmState& start,
                 DraftOptions options) {
  options.engine = Engine::kOpenFst;
  const DraftList expected = FindDrafts(lattice, lm, start, options);
  options.engine = Engine::kFused;
  for (const std::string& name : FusedInstructionSets()) {
    SetFusedInstructionSet(name);
    const DraftList drafts = FindDrafts(lattice, lm, start, options);
    Expect(drafts.token_ids == expected.token_ids, "the engines' drafts differ", name);
    Expect(drafts.scores == expected.scores, "the engines' scores differ", name);
    for (const Normalization normalization : {Normalization::kGlobal, Normalization::kLocal}) {
      CheckTree(FindTree(lattice, lm, start, options.alpha, options.num_drafts, normalization),
                name);
      const ChainOptions chain = {options.alpha, ChainObjective::kAcceptLength, normalization};
      CheckTree(FindChain(lattice, lm, start, chain), name);
    }
  }
}

}  // namespace
}  // namespace lattice_bpd

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lattice_bpd;
  UseOpenFst();
  ByteSource bytes(data, size);
  const int order = 1 + static_cast<int>(Below(&bytes, kMaxOrder));
  const bool exact = Below(&bytes, 2) == 0;
  const std::uint32_t vocab_size = 3 + Below(&bytes, 60);
  const std::uint32_t used = 2 + Below(&bytes, vocab_size - 2);
  const int ngrams = static_cast<int>(Below(&bytes, 60));
  const double alphas[] = {1.0, 0.3, 0.0, -1.25, 16.0, 1e6};
  DraftOptions options;
  options.num_drafts = 1 + static_cast<int>(Below(&bytes, 40));
  options.alpha = alphas[Below(&bytes, 6)];
  std::vector<TokenId> context(Below(&bytes, 8));
  for (TokenId& token : context) token = static_cast<TokenId>(Below(&bytes, used));
  const Sausage plain = RandomLattice(&bytes, used, 5);
  const bool has_transitions = Below(&bytes, 2) == 0;
  const Sausage lattice = has_transitions ? WithTransitions(&bytes, plain) : plain;
  const auto lm = RandomLm(&bytes, vocab_size, used, order, ngrams, exact);
  CheckSearch(lattice, lm.get(), lm->StateOfContext(context, Below(&bytes, 2) == 0), options);
  CheckSearch(lattice, nullptr, {}, options);
  return 0;
}
