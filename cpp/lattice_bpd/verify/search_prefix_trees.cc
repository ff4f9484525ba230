#include "lattice_bpd/verify/search_prefix_trees.h"

#include <algorithm>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_tree.h"

namespace lattice_bpd {
namespace {

// The last token of each context.
std::vector<std::int64_t> ExactTokens(const ContextsView& contexts, std::size_t batch,
                                      std::size_t max_depths) {
  if (max_depths != batch) {
    throw ValueError(StrCat("found ", max_depths, " maximum depths for ", batch,
                            " lattices; expected one for each"));
  }
  CheckContexts(contexts, batch);
  std::vector<std::int64_t> exact_tokens;
  for (std::size_t b = 0; b < batch; ++b) {
    const Span<TokenId> context = ContextOfRow(contexts, b);
    if (context.empty()) {
      throw ValueError(StrCat("context ", b, " is empty; expected the exact token at its end"));
    }
    exact_tokens.push_back(context[context.size() - 1]);
  }
  return exact_tokens;
}

PrefixTree BelowExactToken(std::int64_t exact_token, const std::vector<TreeNode>& nodes,
                           std::int32_t max_depth) {
  PrefixTree tree(exact_token, nodes.size() + 1);
  std::vector<NodeNumber> numbers(nodes.size(), kNoParent);  // of those that are not left out
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const TreeNode& node = nodes[i];
    if (node.depth >= max_depth) continue;
    const NodeNumber above = node.parent < 0 ? 0 : numbers[static_cast<std::size_t>(node.parent)];
    numbers[i] = tree.Add(above, node.token_id, static_cast<float>(node.log_prob));
  }
  return tree;
}

}  // namespace

std::vector<PrefixTree> SearchTrees(const LatticeBatch& lattices, const BackoffLm* lm,
                                    const ContextsView& contexts, Span<std::int32_t> max_depths,
                                    double alpha, int max_nodes, int threads,
                                    Normalization normalization) {
  CheckMaxNodes(max_nodes);
  CheckAlpha(alpha);
  const auto exact_tokens = ExactTokens(contexts, lattices.size(), max_depths.size());
  std::vector<PrefixTree> trees(lattices.size());
  ForEachLattice(lattices, lm, contexts, threads,
                 [&](std::size_t b, const Sausage& lattice, const LmState& start) {
                   const auto nodes = FindTree(lattice, lm, start, alpha, max_nodes, normalization);
                   trees[b] = BelowExactToken(exact_tokens[b], nodes, max_depths[b]);
                 });
  return trees;
}

std::vector<PrefixTree> SearchDrafts(const LatticeBatch& lattices, const BackoffLm* lm,
                                     const ContextsView& contexts, Span<std::int32_t> max_depths,
                                     const DraftOptions& options, int threads) {
  CheckNumDrafts(options.num_drafts);
  const auto exact_tokens = ExactTokens(contexts, lattices.size(), max_depths.size());
  std::vector<PrefixTree> trees(lattices.size());
  ForEachLattice(lattices, lm, contexts, threads,
                 [&](std::size_t b, const Sausage& lattice, const LmState& start) {
                   thread_local DraftList drafts;
                   FindDrafts(lattice, lm, start, options, &drafts);
                   IntegerView<TokenId> view;
                   view.data = drafts.token_ids.data();
                   view.rows = drafts.size();
                   view.columns = std::min(drafts.num_slots,
                                           static_cast<std::size_t>(std::max(max_depths[b], 0)));
                   view.row_stride = static_cast<std::ptrdiff_t>(drafts.num_slots);
                   view.column_stride = 1;
                   trees[b] = TreeOfDrafts(exact_tokens[b], view);
                 });
  return trees;
}

std::vector<PrefixTree> SearchChains(const LatticeBatch& lattices, const BackoffLm* lm,
                                     const ContextsView& contexts, Span<std::int32_t> max_depths,
                                     const ChainOptions& options, int threads) {
  CheckAlpha(options.alpha);
  const auto exact_tokens = ExactTokens(contexts, lattices.size(), max_depths.size());
  std::vector<PrefixTree> trees(lattices.size());
  ForEachLattice(lattices, lm, contexts, threads,
                 [&](std::size_t b, const Sausage& lattice, const LmState& start) {
                   const auto nodes = FindChain(lattice, lm, start, options);
                   trees[b] = BelowExactToken(exact_tokens[b], nodes, max_depths[b]);
                 });
  return trees;
}

}  // namespace lattice_bpd
