#include "lattice_bpd/verify/call_layout.h"

#include <algorithm>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/ancestor_mask.h"

namespace lattice_bpd {
namespace {

void CheckStarts(TreeBatchView trees, Span<std::int64_t> starts) {
  if (trees.size() == starts.size()) return;
  throw ValueError(StrCat("found ", starts.size(), " starts for ", trees.size(),
                          " trees; expected one for each"));
}

void CheckFits(const PrefixTree& tree, std::size_t size) {
  if (tree.size() <= size) return;
  throw ValueError(
      StrCat("found a tree of ", tree.size(), " nodes for rows of ", size, "; expected no more"));
}

}  // namespace

void LayOutTrees(TreeBatchView trees, Span<std::int64_t> starts, std::size_t size,
                 std::int64_t* token_ids, std::int64_t* positions) {
  CheckStarts(trees, starts);
  for (std::size_t b = 0; b < trees.size(); ++b) {
    const PrefixTree& tree = *trees[b];
    CheckFits(tree, size);
    std::int64_t* const tokens = token_ids + b * size;
    std::int64_t* const row_positions = positions + b * size;
    for (std::size_t i = 0; i < tree.size(); ++i) {
      tokens[i] = tree.nodes()[i].token_id;
      row_positions[i] = starts[b] + tree.nodes()[i].depth;
    }
    std::fill(tokens + tree.size(), tokens + size, std::int64_t{0});
    std::fill(row_positions + tree.size(), row_positions + size, starts[b]);
  }
}

void WriteNodeMasks(TreeBatchView trees, std::size_t size, std::uint8_t* masks) {
  for (std::size_t b = 0; b < trees.size(); ++b) {
    CheckFits(*trees[b], size);
    WriteAncestorMask(trees[b]->parents(), size, masks + b * size * size);
  }
}

void WriteAdditiveMasks(TreeBatchView trees, Span<std::int64_t> starts, std::size_t size,
                        std::size_t slots, float lowest, float* masks) {
  CheckStarts(trees, starts);
  for (std::size_t b = 0; b < trees.size(); ++b) {
    const PrefixTree& tree = *trees[b];
    CheckFits(tree, size);
    const auto width = static_cast<std::size_t>(starts[b]);
    if (starts[b] < 0 || slots < size || width > slots - size) {
      throw ValueError(StrCat("found ", slots, " slots for ", starts[b], " old and ", size,
                              " new ones; expected as many or more"));
    }
    for (std::size_t i = 0; i < size; ++i) {
      float* const row = masks + (b * size + i) * slots;
      const NodeNumber parent = i < tree.size() ? tree.nodes()[i].parent : kNoParent;
      if (parent == kNoParent) {
        std::fill_n(row, width, 0.0F);
        std::fill(row + width, row + slots, lowest);
      } else {
        std::copy_n(masks + (b * size + static_cast<std::size_t>(parent)) * slots, slots, row);
      }
      row[width + i] = 0.0F;
    }
  }
}

RowLayout LayOutRows(TreeBatchView trees, Span<std::int64_t> starts) {
  CheckStarts(trees, starts);
  RowLayout out;
  for (const PrefixTree* tree : trees) {
    if (tree->size() == 0) throw ValueError("found a tree without nodes; expected an exact token");
    out.num_rows += tree->num_leaves();
    out.size = std::max(out.size, static_cast<std::size_t>(tree->max_depth()) + 1);
  }
  out.token_ids.assign(out.num_rows * out.size, 0);
  out.positions.resize(out.num_rows * out.size);
  out.sequences.resize(out.num_rows);
  std::size_t further = trees.size();
  for (std::size_t b = 0; b < trees.size(); ++b) {
    const PrefixTree& tree = *trees[b];
    std::vector<std::int64_t> node_rows(tree.size());
    const std::vector<std::vector<NodeNumber>> paths = tree.Paths();
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const std::vector<NodeNumber>& path = paths[i];
      const std::size_t row = i == 0 ? b : further++;
      for (std::size_t column = 0; column < out.size; ++column) {
        const std::size_t at = row * out.size + column;
        const std::size_t depth = std::min(column, path.size() - 1);
        out.positions[at] = starts[b] + static_cast<std::int64_t>(depth);
        if (column >= path.size()) continue;
        const auto node = static_cast<std::size_t>(path[column]);
        out.token_ids[at] = tree.nodes()[node].token_id;
        node_rows[node] = static_cast<std::int64_t>(at);
      }
      out.sequences[row] = static_cast<std::int64_t>(b);
    }
    out.node_rows.push_back(std::move(node_rows));
  }
  return out;
}

}  // namespace lattice_bpd
