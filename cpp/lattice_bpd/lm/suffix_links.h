// From each n-gram of a trie to its suffix: the same n-gram without its first symbol.
//
//   the cat sat  ->  cat sat  ->  sat
//
// Links go level by level, since the children of a context are among the children of the
// context's suffix, and both lists are sorted.
#ifndef LATTICE_BPD_LM_SUFFIX_LINKS_H_
#define LATTICE_BPD_LM_SUFFIX_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/base/label.h"

namespace lattice_bpd {

// The sorted words of one level and where each context of the level below has its own; the shape
// that Trie and CountTrie share.
struct ChildLists {
  Span<std::uint32_t> child_begin;  // of the level below: one entry more than it has nodes
  Span<Symbol> word;

  std::size_t num_contexts() const { return child_begin.size() - 1; }
};

template <typename Levels>
ChildLists ChildListsOfLevel(const Levels& levels, int level) {
  return {levels[level - 1].child_begin, levels[level].word};
}

// The node of word among children begin .. end - 1, or `end` where it is not there. Gallops from
// begin, so that asking for rising words costs little. O(log(distance)).
std::uint32_t FindChild(Span<Symbol> words, std::uint32_t begin, std::uint32_t end, Symbol word);

// The contexts of a level that have children, put into windows of near suffixes: visited in this
// order, what they search of their suffixes' children stays in the caches, while in their own
// order each lookup is a miss in a level of hundreds of megabytes.
class ContextsBySuffix {
 public:
  // Arguments as for LinkSuffixes, level 2 or more. O(contexts); 4 bytes for each.
  ContextsBySuffix(const ChildLists& lists, const ChildLists& below,
                   Span<std::uint32_t> below_links);

  // Calls visit(contexts) once for each window, on up to num_threads threads.
  void Run(int num_threads, const std::function<void(Span<std::uint32_t>)>& visit) const;

 private:
  std::vector<std::uint32_t> contexts_;
  std::vector<std::size_t> window_begin_;  // one more entry
};

// For each node of `level` (1 or more), its suffix's node one level below.
// below_links: the links of level - 1; empty for level 1. `below`: the child lists of level - 1;
// not used for level 1, where the suffix of (a, b) is node b.
// O(n log d) for n nodes and lists of d children; 4 bytes a node, and 4 a context while it runs.
// Throws ValueError where a suffix is missing.
std::vector<std::uint32_t> LinkSuffixes(const ChildLists& lists, const ChildLists& below,
                                        Span<std::uint32_t> below_links, int num_threads);

// LinkSuffixes for `level` of a trie's levels.
template <typename Levels>
std::vector<std::uint32_t> LinkLevel(const Levels& levels, int level,
                                     Span<std::uint32_t> below_links, int num_threads) {
  const ChildLists below = level > 1 ? ChildListsOfLevel(levels, level - 1) : ChildLists{};
  return LinkSuffixes(ChildListsOfLevel(levels, level), below, below_links, num_threads);
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_SUFFIX_LINKS_H_
