#include "lattice_bpd/draft/sample_batch.h"

#include <algorithm>
#include <limits>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

SampledTreeBatch MakePadding(std::size_t batch, std::size_t num_slots, std::size_t max_nodes,
                             std::size_t width) {
  SampledTreeBatch out;
  out.width = width;
  out.token_ids.assign(batch * max_nodes, kPadToken);
  out.parents.assign(batch * max_nodes, -1);
  out.depths.assign(batch * max_nodes, 0);
  out.log_probs.assign(batch * max_nodes, -std::numeric_limits<float>::infinity());
  out.counts.assign(batch, 0);
  out.slot_token_ids.assign(batch * num_slots * width, kPadToken);
  out.child_probs.assign(batch * (max_nodes + 1) * width, 0.0);
  return out;
}

void WriteTree(const SampledTree& tree, std::size_t b, std::size_t num_slots, std::size_t max_nodes,
               SampledTreeBatch* out) {
  out->counts[b] = static_cast<std::int32_t>(tree.nodes.size());
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const std::size_t at = b * max_nodes + i;
    out->token_ids[at] = tree.nodes[i].token_id;
    out->parents[at] = tree.nodes[i].parent;
    out->depths[at] = tree.nodes[i].depth;
    out->log_probs[at] = static_cast<float>(tree.nodes[i].log_prob);
  }
  const std::size_t kept_slots = tree.width == 0 ? 0 : tree.token_ids.size() / tree.width;
  for (std::size_t j = 0; j < kept_slots; ++j) {
    std::copy_n(tree.token_ids.data() + j * tree.width, tree.width,
                out->slot_token_ids.data() + (b * num_slots + j) * out->width);
  }
  for (std::size_t i = 0; i <= tree.nodes.size(); ++i) {
    std::copy_n(tree.child_probs.data() + i * tree.width, tree.width,
                out->child_probs.data() + (b * (max_nodes + 1) + i) * out->width);
  }
}

}  // namespace

SampledTreeBatch SampleTreeBatch(const LatticeBatch& lattices, const BackoffLm* lm,
                                 const ContextsView& contexts, const SampleOptions& options,
                                 Span<std::uint64_t> keys, Span<std::uint64_t> positions,
                                 int threads) {
  CheckMaxNodes(options.max_nodes);
  if (keys.size() != lattices.size() || positions.size() != lattices.size()) {
    throw ValueError(StrCat("found ", keys.size(), " keys and ", positions.size(),
                            " positions for ", lattices.size(),
                            " lattices; expected one of each for each"));
  }
  std::vector<SampledTree> trees(lattices.size());
  ForEachLattice(lattices, lm, contexts, threads,
                 [&](std::size_t b, const Sausage& lattice, const LmState& start) {
                   SampleOptions own = options;
                   own.key = keys[b];
                   own.position = positions[b];
                   SampleTree(lattice, lm, start, own, &trees[b]);
                 });
  std::size_t width = 0;
  for (const SampledTree& tree : trees) width = std::max(width, tree.width);
  const auto max_nodes = static_cast<std::size_t>(options.max_nodes);
  const std::size_t num_slots = lattices.num_slots();
  SampledTreeBatch out = MakePadding(lattices.size(), num_slots, max_nodes, width);
  for (std::size_t b = 0; b < trees.size(); ++b) {
    if (num_slots > 0) WriteTree(trees[b], b, num_slots, max_nodes, &out);
  }
  return out;
}

}  // namespace lattice_bpd
