#include "lattice_bpd/lm/suffix_links.h"

#include <algorithm>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"

namespace lattice_bpd {
namespace {

// The children of context c of `lists` are looked for among those of context below_links[c].
void LinkContexts(const ChildLists& lists, const ChildLists& below, Span<std::uint32_t> below_links,
                  std::size_t first, std::size_t last, std::vector<std::uint32_t>* links) {
  for (std::size_t context = first; context < last; ++context) {
    const std::uint32_t suffix = below_links[context];
    const std::uint32_t end = below.child_begin[suffix + 1];
    std::uint32_t at = below.child_begin[suffix];
    for (std::uint32_t i = lists.child_begin[context]; i < lists.child_begin[context + 1]; ++i) {
      at = FindChild(below.word, at, end, lists.word[i]);
      if (at == end) {
        throw ValueError(StrCat("n-gram trie: an n-gram ends in symbol ", lists.word[i],
                                " but its suffix is missing; expected every suffix to be there"));
      }
      (*links)[i] = at++;
    }
  }
}

}  // namespace

std::uint32_t FindChild(Span<Symbol> words, std::uint32_t begin, std::uint32_t end, Symbol word) {
  std::uint32_t step = 1;
  std::uint32_t low = begin;
  while (low < end && words[low] < word) {
    begin = low + 1;
    low = end - low > step ? low + step : end;
    step *= 2;
  }
  const Symbol* const at = std::lower_bound(words.data() + begin, words.data() + low, word);
  const auto node = static_cast<std::uint32_t>(at - words.data());
  return node < end && words[node] == word ? node : end;
}

std::vector<std::uint32_t> LinkSuffixes(const ChildLists& lists, const ChildLists& below,
                                        Span<std::uint32_t> below_links, int num_threads) {
  if (below_links.empty()) return {lists.word.begin(), lists.word.end()};
  std::vector<std::uint32_t> links(lists.word.size());
  RunOverContexts(lists.child_begin, num_threads, [&](std::size_t first, std::size_t last) {
    LinkContexts(lists, below, below_links, first, last, &links);
  });
  return links;
}

}  // namespace lattice_bpd
