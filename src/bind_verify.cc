#include <algorithm>

#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/verify/call_layout.h"
#include "lattice_bpd/verify/follow_greedy.h"
#include "lattice_bpd/verify/move_slots.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using Trees = std::vector<const PrefixTree*>;
using Starts = std::vector<std::int64_t>;

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
                   const Integers<T>& parents, std::int32_t max_depth) {
  return TreeOfNodes(exact_token, ToView(token_ids, 1), ToView(parents, 1), max_depth);
}

template <typename T>
PrefixTree OfDrafts(std::int64_t exact_token, const Integers<T>& drafts) {
  return TreeOfDrafts(exact_token, ToView(drafts, 2));
}

PrefixTree OfParents(const std::vector<std::int64_t>& token_ids,
                     const std::vector<NodeNumber>& parents) {
  return TreeOfParents(token_ids, parents);
}

// -> (2, batch, size): token ids and positions.
py::array_t<std::int64_t> TreeInputs(const Trees& trees, const Starts& starts, std::size_t size) {
  py::array_t<std::int64_t> inputs({std::size_t{2}, trees.size(), size});
  std::int64_t* data = inputs.mutable_data();
  LayOutTrees(trees, starts, size, data, data + trees.size() * size);
  return inputs;
}

py::array_t<std::uint8_t> NodeMasks(const Trees& trees, std::size_t size) {
  py::array_t<std::uint8_t> masks({trees.size(), size, size});
  WriteNodeMasks(trees, size, masks.mutable_data());
  return masks;
}

// -> (batch, 1, size, slots).
py::array_t<float> AdditiveMasks(const Trees& trees, std::size_t size, std::size_t width,
                                 std::size_t slots, float lowest) {
  py::array_t<float> masks({trees.size(), std::size_t{1}, size, slots});
  WriteAdditiveMasks(trees, size, width, slots, lowest, masks.mutable_data());
  return masks;
}

// -> token ids and positions (rows, size), the tree of each row, the place of each tree's nodes.
py::tuple RowInputs(const Trees& trees, const Starts& starts) {
  RowLayout layout = LayOutRows(trees, starts);
  const auto rows = static_cast<py::ssize_t>(layout.num_rows);
  const auto size = static_cast<py::ssize_t>(layout.size);
  py::list places;
  for (std::vector<std::int64_t>& of_tree : layout.places) {
    const auto nodes = static_cast<py::ssize_t>(of_tree.size());
    places.append(ToArray(std::move(of_tree), {nodes}));
  }
  return py::make_tuple(ToArray(std::move(layout.token_ids), {rows, size}),
                        ToArray(std::move(layout.positions), {rows, size}),
                        std::move(layout.sequences), std::move(places));
}

// Logits (rows, vocab) float32 -> accepted nodes, and the target's tokens behind them.
std::pair<std::vector<NodeNumber>, std::vector<std::int64_t>> FollowGreedyOf(
    const PrefixTree& tree, const Array<float>& logits, const Array<std::int64_t>& places) {
  if (logits.ndim() != 2) {
    throw ValueError(StrCat("logits: ", logits.ndim(), " dimensions; expected 2"));
  }
  const LogitRows rows = {logits.data(), static_cast<std::size_t>(logits.shape(0)),
                          static_cast<std::size_t>(logits.shape(1))};
  Followed found = FollowGreedy(tree, rows, ToSpan(places));
  return {std::move(found.nodes), std::move(found.token_ids)};
}

// Buffers (layers, batch, heads, slots, bytes) uint8, changed in place.
void MoveSlotsOf(std::vector<Array<std::uint8_t>> buffers, std::size_t start,
                 const std::vector<std::vector<std::size_t>>& sources) {
  for (Array<std::uint8_t>& buffer : buffers) {
    if (buffer.ndim() != 5) {
      throw ValueError(StrCat("move_slots: a buffer of ", buffer.ndim(),
                              " dimensions; expected layers, batch, heads, slots and bytes"));
    }
    const auto size = [&](int axis) { return static_cast<std::size_t>(buffer.shape(axis)); };
    MoveSlots({buffer.mutable_data(), size(0), size(1), size(2), size(3), size(4)}, start, sources);
  }
}

}  // namespace

void BindVerify(py::module_& m) {
  py::class_<PrefixTree>(m, "PrefixTree", "Drafts of one sequence; every shared prefix once.")
      .def(py::init(&OfParents), py::arg("token_ids"), py::arg("parents"))
      .def_static("of_nodes", &OfNodes<std::int32_t>, py::arg("exact_token"),
                  py::arg("token_ids").noconvert(), py::arg("parents").noconvert(),
                  py::arg("max_depth"))
      .def_static("of_nodes", &OfNodes<std::int64_t>, py::arg("exact_token"),
                  py::arg("token_ids").noconvert(), py::arg("parents").noconvert(),
                  py::arg("max_depth"))
      .def_static("of_drafts", &OfDrafts<std::int32_t>, py::arg("exact_token"),
                  py::arg("drafts").noconvert())
      .def_static("of_drafts", &OfDrafts<std::int64_t>, py::arg("exact_token"),
                  py::arg("drafts").noconvert())
      .def("__len__", &PrefixTree::size)
      .def_property_readonly("token_ids", &PrefixTree::token_ids)
      .def_property_readonly("parents", &PrefixTree::parents)
      .def_property_readonly("depths", &PrefixTree::depths)
      .def_property_readonly("max_depth", &PrefixTree::max_depth)
      .def_property_readonly("num_leaves", &PrefixTree::num_leaves)
      .def_property_readonly("token_range",
                             [](const PrefixTree& tree) {
                               const auto [low, high] = std::minmax_element(
                                   tree.token_ids().begin(), tree.token_ids().end());
                               if (low == tree.token_ids().end())
                                 throw ValueError("PrefixTree: no nodes");
                               return std::make_pair(*low, *high);
                             })
      .def("paths", &PrefixTree::Paths)
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
          py::arg("node"))
      .def("follow_greedy", &FollowGreedyOf, py::arg("logits").noconvert(),
           py::arg("places").noconvert());
  m.def("tree_inputs", &TreeInputs, py::arg("trees"), py::arg("starts"), py::arg("size"));
  m.def("node_masks", &NodeMasks, py::arg("trees"), py::arg("size"));
  m.def("additive_masks", &AdditiveMasks, py::arg("trees"), py::arg("size"), py::arg("width"),
        py::arg("slots"), py::arg("lowest"));
  m.def("row_inputs", &RowInputs, py::arg("trees"), py::arg("starts"));
  m.def("move_slots", &MoveSlotsOf, py::arg("buffers").noconvert(), py::arg("start"),
        py::arg("sources"));
}

}  // namespace lattice_bpd
