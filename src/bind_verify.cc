#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/chain_batch.h"
#include "lattice_bpd/verify/attention.h"
#include "lattice_bpd/verify/call_layout.h"
#include "lattice_bpd/verify/follow_greedy.h"
#include "lattice_bpd/verify/move_slots.h"
#include "lattice_bpd/verify/products.h"
#include "lattice_bpd/verify/search_prefix_trees.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using Trees = std::vector<const PrefixTree*>;
using Starts = std::vector<std::int64_t>;
using Contexts = std::vector<std::vector<TokenId>>;
using MaxDepths = std::vector<std::int32_t>;

// Integers in any strides; taken as they are, so that floats are refused.
template <typename T>
using Integers = py::array_t<T, 0>;

template <typename T>
IntegerView<T> ToView(const Integers<T>& array, int dimensions) {
  if (array.ndim() != dimensions) {
    throw ValueError(
        StrCat("PrefixTree: an array of ", array.ndim(), " dimensions; expected ", dimensions));
  }
  const bool is_row = dimensions == 1;
  const auto stride = [&](int axis) {
    return array.strides(axis) / static_cast<py::ssize_t>(sizeof(T));
  };
  IntegerView<T> view;
  view.data = array.data();
  view.rows = is_row ? 1 : static_cast<std::size_t>(array.shape(0));
  view.columns = static_cast<std::size_t>(array.shape(dimensions - 1));
  view.row_stride = is_row ? 0 : stride(0);
  view.column_stride = stride(dimensions - 1);
  return view;
}

template <typename T>
PrefixTree OfNodes(std::int64_t exact_token, const Integers<T>& token_ids,
                   const Integers<T>& parents, std::int32_t max_depth,
                   const std::optional<Array<float>>& log_probs) {
  return TreeOfNodes(exact_token, ToView(token_ids, 1), ToView(parents, 1), max_depth,
                     log_probs ? ToSpan(*log_probs) : Span<float>());
}

template <typename T>
PrefixTree OfDrafts(std::int64_t exact_token, const Integers<T>& drafts) {
  return TreeOfDrafts(exact_token, ToView(drafts, 2));
}

PrefixTree OfParents(const std::vector<std::int64_t>& token_ids,
                     const std::vector<NodeNumber>& parents) {
  return TreeOfParents(token_ids, parents);
}

using Inputs = std::pair<py::array_t<std::int64_t>, py::array_t<std::int64_t>>;

// -> token ids and positions, (batch, size) both.
Inputs TreeInputs(const Trees& trees, const Starts& starts, std::size_t size) {
  Inputs inputs = {py::array_t<std::int64_t>({trees.size(), size}),
                   py::array_t<std::int64_t>({trees.size(), size})};
  LayOutTrees(trees, starts, size, inputs.first.mutable_data(), inputs.second.mutable_data());
  return inputs;
}

py::array_t<std::uint8_t> NodeMasks(const Trees& trees, std::size_t size) {
  py::array_t<std::uint8_t> masks({trees.size(), size, size});
  WriteNodeMasks(trees, size, masks.mutable_data());
  return masks;
}

// -> (batch, 1, size, slots).
py::array_t<float> AdditiveMasks(const Trees& trees, const Starts& starts, std::size_t size,
                                 std::size_t slots, float lowest) {
  py::array_t<float> masks({trees.size(), std::size_t{1}, size, slots});
  WriteAdditiveMasks(trees, starts, size, slots, lowest, masks.mutable_data());
  return masks;
}

// -> token ids and positions (rows, size), the tree of each row, the index of each node's row
// of logits.
py::tuple RowInputs(const Trees& trees, const Starts& starts) {
  RowLayout layout = LayOutRows(trees, starts);
  const auto rows = static_cast<py::ssize_t>(layout.num_rows);
  const auto size = static_cast<py::ssize_t>(layout.size);
  py::list node_rows;
  for (std::vector<std::int64_t>& of_tree : layout.node_rows)
    node_rows.append(ToArray(std::move(of_tree)));
  return py::make_tuple(ToArray(std::move(layout.token_ids), {rows, size}),
                        ToArray(std::move(layout.positions), {rows, size}),
                        std::move(layout.sequences), std::move(node_rows));
}

// Logits (rows, size, vocab) float32, and each node's index in their first two axes flattened, or
// None where the nodes of tree b begin at b * size -> for each tree the accepted nodes, the
// target's tokens after them, and the index of the last node.
py::list FollowGreedyOf(const Trees& trees, const Array<float>& logits,
                        const std::optional<std::vector<Array<std::int64_t>>>& node_rows) {
  if (logits.ndim() != 3) {
    throw ValueError(StrCat("logits: ", logits.ndim(), " dimensions; expected 3"));
  }
  if (node_rows && node_rows->size() != trees.size()) {
    throw ValueError(
        StrCat("found node_rows of ", node_rows->size(), " trees; expected ", trees.size()));
  }
  const auto size = static_cast<std::size_t>(logits.shape(1));
  const LogitRows rows = {logits.data(), static_cast<std::size_t>(logits.shape(0)) * size,
                          static_cast<std::size_t>(logits.shape(2))};
  py::list all;
  for (std::size_t b = 0; b < trees.size(); ++b) {
    NodeRows of_tree;
    of_tree.first = static_cast<std::int64_t>(b * size);
    if (node_rows) of_tree.listed = ToSpan((*node_rows)[b]);
    Followed followed = FollowGreedy(*trees[b], rows, of_tree);
    all.append(
        py::make_tuple(std::move(followed.nodes), std::move(followed.token_ids), followed.end));
  }
  return all;
}

// -> nodes of the largest tree, greatest depth, leaves of all.
std::tuple<std::size_t, std::int32_t, std::size_t> TreeExtents(const Trees& trees) {
  std::size_t size = 0, leaves = 0;
  std::int32_t depth = 0;
  for (const PrefixTree* tree : trees) {
    size = std::max(size, tree->size());
    depth = std::max(depth, tree->max_depth());
    leaves += tree->num_leaves();
  }
  return {size, depth, leaves};
}

// Of the nodes after the exact token; None where they are not known.
std::optional<py::array_t<float>> NodeLogProbs(const PrefixTree& tree) {
  std::vector<float> values;
  for (std::size_t i = 1; i < tree.size(); ++i) values.push_back(tree.nodes()[i].log_prob);
  if (std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); })) {
    return std::nullopt;
  }
  return ToArray(std::move(values));
}

// The contexts, concatenated.
struct FlatContexts {
  explicit FlatContexts(const Contexts& contexts) {
    for (const std::vector<TokenId>& context : contexts) {
      token_ids.insert(token_ids.end(), context.begin(), context.end());
      offsets.push_back(static_cast<std::int64_t>(token_ids.size()));
    }
  }
  ContextsView view() const { return {token_ids, offsets, true}; }

  std::vector<TokenId> token_ids;
  std::vector<std::int64_t> offsets = {0};
};

// Prefix trees of lattices below contexts that end in the exact token: the most probable prefixes
// ("tree"), `number` of them, as many best drafts ("drafts"), or the draft of greatest expected
// accept length ("chain").
std::vector<PrefixTree> SearchPrefixTrees(const Lattices& lattices, const LmOrNone& lm,
                                          const Contexts& contexts, const MaxDepths& max_depths,
                                          const std::string& kind, int number, double alpha,
                                          const std::string& normalization, int threads) {
  const LatticeBatch batch = ToBatch(lattices);
  const FlatContexts flat(contexts);
  const Normalization normalized = ParseNormalization(normalization);
  const py::gil_scoped_release release;
  if (kind == "tree") {
    return SearchTrees(batch, Get(lm), flat.view(), max_depths, alpha, number, threads, normalized);
  }
  if (kind == "drafts") {
    return SearchDrafts(batch, Get(lm), flat.view(), max_depths,
                        {number, alpha, Engine::kAuto, normalized}, threads);
  }
  if (kind != "chain") {
    throw ValueError(StrCat("found kind ", kind, "; expected tree, drafts or chain"));
  }
  return SearchChains(batch, Get(lm), flat.view(), max_depths,
                      {alpha, ChainObjective::kAcceptLength, normalized}, threads);
}

// The tokens of the chains. Candidates may be cut to max_lengths slots, and divided by a
// temperature; other lattices are taken as they are.
std::vector<std::vector<TokenId>> DraftChains(const Lattices& lattices, const LmOrNone& lm,
                                              const Contexts& contexts,
                                              const MaxDepths& max_lengths, double alpha,
                                              float temperature, double least_log_prob,
                                              const std::string& normalization, int threads) {
  const auto* arrays = std::get_if<CandidateArrays>(&lattices);
  CandidatesView candidates;
  if (arrays != nullptr) {
    candidates = ToCandidates(arrays->first, arrays->second);
    if (max_lengths.size() != candidates.batch) {
      throw ValueError(StrCat("found ", max_lengths.size(), " maximum lengths for ",
                              candidates.batch, " lattices; expected one for each"));
    }
    if (!(temperature > 0.0f)) {
      throw ValueError(StrCat("temperature is ", temperature, "; expected above 0"));
    }
    candidates.max_slots = max_lengths.data();
    candidates.temperature = temperature;
  }
  const LatticeBatch batch = arrays != nullptr ? LatticeBatch(candidates) : ToBatch(lattices);
  const FlatContexts flat(contexts);
  const ChainOptions options = {alpha, ChainObjective::kAcceptLength,
                                ParseNormalization(normalization)};
  const py::gil_scoped_release release;
  return FindChainDrafts(batch, Get(lm), flat.view(), options, least_log_prob, threads);
}

// Address of the first number, and strides of rows, heads and tokens in numbers.
using Heads = std::array<std::intptr_t, 4>;

HeadsView ToHeads(const Heads& heads) {
  return {reinterpret_cast<const void*>(heads[0]), heads[1], heads[2], heads[3]};
}

// Of tensors in memory that the caller keeps; of a mask, none or its address and the strides of
// rows and queries.
void AttendOf(const std::array<std::size_t, 6>& shape, bool is_bfloat16, const Heads& query,
              const Heads& key, const Heads& value,
              const std::optional<std::array<std::intptr_t, 3>>& mask, bool mask_is_bool,
              float scale, std::intptr_t out, int threads) {
  AttentionCall call;
  call.type = is_bfloat16 ? FloatType::kBFloat16 : FloatType::kFloat32;
  call.rows = shape[0];
  call.heads = shape[1];
  call.kv_heads = shape[2];
  call.queries = shape[3];
  call.positions = shape[4];
  call.size = shape[5];
  call.query = ToHeads(query);
  call.key = ToHeads(key);
  call.value = ToHeads(value);
  if (mask) {
    call.mask_type = mask_is_bool ? AttentionMask::kBool : AttentionMask::kAdded;
    call.mask = reinterpret_cast<const void*>((*mask)[0]);
    call.mask_row_stride = (*mask)[1];
    call.mask_query_stride = (*mask)[2];
  }
  call.scale = scale;
  call.out = reinterpret_cast<void*>(out);
  const py::gil_scoped_release release;
  Attend(call, threads);
}

// Of tensors in memory that the caller keeps; `bias` may be 0. shape: inputs, rows, columns.
void ApplyLinearOf(const std::array<std::size_t, 3>& shape, const std::string& float_type,
                   py::ssize_t itemsize, std::intptr_t input, std::intptr_t weight,
                   std::intptr_t bias, std::intptr_t out, int threads) {
  const LinearCall call = {ParseFloatType(float_type, itemsize),
                           shape[0],
                           shape[1],
                           shape[2],
                           reinterpret_cast<const void*>(input),
                           reinterpret_cast<const void*>(weight),
                           reinterpret_cast<const void*>(bias),
                           reinterpret_cast<void*>(out)};
  const py::gil_scoped_release release;
  ApplyLinear(call, threads);
}

using Buffers = std::vector<Array<std::uint8_t>>;

// (layers, rows, heads, positions, bytes).
SlotBuffer ToSlotBuffer(Array<std::uint8_t>& buffer) {
  if (buffer.ndim() != 5) {
    throw ValueError(StrCat("a cache's buffer has ", buffer.ndim(),
                            " dimensions; expected layers, rows, heads, positions and bytes"));
  }
  const auto size = [&](int axis) { return static_cast<std::size_t>(buffer.shape(axis)); };
  return {buffer.mutable_data(), size(0), size(1), size(2), size(3), size(4)};
}

// Buffers are changed in place.
void MoveSlotsOf(Buffers buffers, const std::vector<std::size_t>& starts,
                 const std::vector<std::vector<std::size_t>>& sources) {
  for (Array<std::uint8_t>& buffer : buffers) MoveSlots(ToSlotBuffer(buffer), starts, sources);
}

// Buffers are changed in place; copies: row, another row, and the first slot and that after the
// last.
void CopySlotsOf(Buffers buffers, const std::vector<std::array<std::size_t, 4>>& copies) {
  std::vector<SlotCopy> all;
  for (const std::array<std::size_t, 4>& one : copies) {
    all.push_back({one[0], one[1], one[2], one[3]});
  }
  for (Array<std::uint8_t>& buffer : buffers) CopySlots(ToSlotBuffer(buffer), all);
}

// Of tensors in memory that the caller keeps, with strides in numbers. shape: rows, heads, slots,
// bytes of a slot.
void WriteSlotsOf(const std::array<std::size_t, 4>& shape, std::ptrdiff_t itemsize,
                  const Heads& from, const Heads& to, std::size_t capacity, const Starts& starts) {
  const auto rows = [&](const Heads& heads) -> SlotRows {
    return {reinterpret_cast<unsigned char*>(heads[0]), heads[1] * itemsize, heads[2] * itemsize,
            heads[3] * itemsize};
  };
  WriteSlots(rows(from), {shape[0], shape[1], shape[2], shape[3]}, rows(to), capacity, starts);
}

}  // namespace

void BindVerify(py::module_& m) {
  py::class_<PrefixTree>(m, "PrefixTree", "Drafts of one sequence; every shared prefix once.")
      .def(py::init(&OfParents), py::arg("token_ids"), py::arg("parents"))
      .def(py::init<const PrefixTree&>(), py::arg("tree"))
      .def_static("of_nodes", &OfNodes<std::int32_t>, py::arg("exact_token"),
                  py::arg("token_ids").noconvert(), py::arg("parents").noconvert(),
                  py::arg("max_depth"), py::arg("log_probs") = py::none())
      .def_static("of_nodes", &OfNodes<std::int64_t>, py::arg("exact_token"),
                  py::arg("token_ids").noconvert(), py::arg("parents").noconvert(),
                  py::arg("max_depth"), py::arg("log_probs") = py::none())
      .def_static("of_drafts", &OfDrafts<std::int32_t>, py::arg("exact_token"),
                  py::arg("drafts").noconvert())
      .def_static("of_drafts", &OfDrafts<std::int64_t>, py::arg("exact_token"),
                  py::arg("drafts").noconvert())
      .def("__len__", &PrefixTree::size)
      .def_property_readonly("token_ids", &PrefixTree::token_ids)
      .def_property_readonly("parents", &PrefixTree::parents)
      .def_property_readonly("depths", &PrefixTree::depths)
      .def_property_readonly("max_depth", &PrefixTree::max_depth)
      .def_property_readonly("log_probs", &NodeLogProbs)
      .def_property_readonly("exact_token",
                             [](const PrefixTree& tree) {
                               if (tree.size() == 0) throw ValueError("PrefixTree: no nodes");
                               return tree.nodes()[0].token_id;
                             })
      .def_property_readonly("token_range",
                             [](const PrefixTree& tree) {
                               if (tree.size() == 0) throw ValueError("PrefixTree: no nodes");
                               auto range = std::make_pair(tree.nodes()[0].token_id,
                                                           tree.nodes()[0].token_id);
                               for (const DraftNode& node : tree.nodes()) {
                                 range.first = std::min(range.first, node.token_id);
                                 range.second = std::max(range.second, node.token_id);
                               }
                               return range;
                             })
      .def("first_nodes", &PrefixTree::Cut, py::arg("count"), py::arg("max_depth"))
      .def("list_paths", &PrefixTree::Paths, "The nodes from node 0 to each leaf, sorted by leaf.")
      .def(
          "child",
          [](const PrefixTree& tree, NodeNumber node, std::int64_t token_id) {
            tree.CheckNode(node);
            return tree.Child(node, token_id);
          },
          py::arg("node"), py::arg("token_id"))
      .def(
          "children",
          [](const PrefixTree& tree, NodeNumber node) {
            tree.CheckNode(node);
            return tree.ChildTokens(node);
          },
          py::arg("node"), "The children of a node, in the order in which they were proposed.");
  m.def("search_prefix_trees", &SearchPrefixTrees, py::arg("lattices").noconvert(), py::arg("lm"),
        py::arg("contexts"), py::arg("max_depths"), py::arg("kind"), py::arg("number"),
        py::arg("alpha"), py::arg("normalization"), py::arg("threads"));
  m.def("draft_chains", &DraftChains, py::arg("lattices").noconvert(), py::arg("lm"),
        py::arg("contexts"), py::arg("max_lengths"), py::arg("alpha"), py::arg("temperature"),
        py::arg("least_log_prob"), py::arg("normalization"), py::arg("threads"));
  m.def("attend", &AttendOf, py::arg("shape"), py::arg("is_bfloat16"), py::arg("query"),
        py::arg("key"), py::arg("value"), py::arg("mask"), py::arg("mask_is_bool"),
        py::arg("scale"), py::arg("out"), py::arg("threads"));
  m.def("apply_linear", &ApplyLinearOf, py::arg("shape"), py::arg("float_type"),
        py::arg("itemsize"), py::arg("input"), py::arg("weight"), py::arg("bias"), py::arg("out"),
        py::arg("threads"));
  m.def("tree_extents", &TreeExtents, py::arg("trees"));
  m.def("follow_greedy", &FollowGreedyOf, py::arg("trees"), py::arg("logits").noconvert(),
        py::arg("node_rows").noconvert());
  m.def("tree_inputs", &TreeInputs, py::arg("trees"), py::arg("starts"), py::arg("size"));
  m.def("node_masks", &NodeMasks, py::arg("trees"), py::arg("size"));
  m.def("additive_masks", &AdditiveMasks, py::arg("trees"), py::arg("starts"), py::arg("size"),
        py::arg("slots"), py::arg("lowest"));
  m.def("row_inputs", &RowInputs, py::arg("trees"), py::arg("starts"));
  m.def("move_slots", &MoveSlotsOf, py::arg("buffers").noconvert(), py::arg("starts"),
        py::arg("sources"));
  m.def("copy_slots", &CopySlotsOf, py::arg("buffers").noconvert(), py::arg("copies"));
  m.def("write_slots", &WriteSlotsOf, py::arg("shape"), py::arg("itemsize"), py::arg("source"),
        py::arg("target"), py::arg("capacity"), py::arg("starts"));
}

}  // namespace lattice_bpd
