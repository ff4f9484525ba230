#include "lattice_bpd/lm/suffix_links.h"

#include <algorithm>
#include <numeric>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/base/vector_memory.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kWindowWords = std::size_t{1} << 16;  // 256 KiB of the level below

// Links the children of contexts, each a miss of its own in the large arrays: those of contexts
// further on are prefetched.
class ContextLinker {
 public:
  ContextLinker(const ChildLists& lists, const ChildLists& below, Span<std::uint32_t> below_links,
                std::uint32_t* links)
      : lists_(lists), below_(below), below_links_(below_links), links_(links) {}

  void Link(Span<std::uint32_t> contexts) const {
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      if (i + 2 * kAhead < contexts.size()) PrefetchContext(contexts[i + 2 * kAhead]);
      if (i + kAhead < contexts.size()) PrefetchChildren(contexts[i + kAhead]);
      LinkContext(contexts[i]);
    }
  }

 private:
  static constexpr std::size_t kAhead = 8;

  void PrefetchContext(std::uint32_t context) const {
    __builtin_prefetch(lists_.child_begin.data() + context);
    __builtin_prefetch(below_links_.data() + context);
  }

  void PrefetchChildren(std::uint32_t context) const {
    const std::uint32_t child = lists_.child_begin[context];
    __builtin_prefetch(lists_.word.data() + child);
    __builtin_prefetch(links_ + child, /*rw=*/1);
    __builtin_prefetch(below_.child_begin.data() + below_links_[context]);
  }

  // The context's children are searched among those of its suffix.
  void LinkContext(std::uint32_t context) const {
    const std::uint32_t suffix = below_links_[context];
    const std::uint32_t end = below_.child_begin[suffix + 1];
    std::uint32_t at = below_.child_begin[suffix];
    const std::uint32_t last = lists_.child_begin[context + 1];
    for (std::uint32_t i = lists_.child_begin[context]; i < last; ++i) {
      at = FindChild(below_.word, at, end, lists_.word[i]);
      if (at == end) {
        throw ValueError(StrCat("n-gram trie: an n-gram ends in symbol ", lists_.word[i],
                                " but its suffix is missing; expected every suffix to be there"));
      }
      links_[i] = at++;
    }
  }

  const ChildLists& lists_;
  const ChildLists& below_;
  const Span<std::uint32_t> below_links_;
  std::uint32_t* const links_;
};

}  // namespace

ContextsBySuffix::ContextsBySuffix(const ChildLists& lists, const ChildLists& below,
                                   Span<std::uint32_t> below_links) {
  int shift = 0;  // 2^shift suffixes have up to kWindowWords words on average
  while (below.word.size() >> shift > kWindowWords && below.num_contexts() >> shift > 1) ++shift;
  const auto window = [&](std::size_t context) { return below_links[context] >> shift; };
  const auto has_children = [&](std::size_t context) {
    return lists.child_begin[context] != lists.child_begin[context + 1];
  };
  window_begin_.assign((below.num_contexts() >> shift) + 2, 0);
  for (std::size_t i = 0; i < lists.num_contexts(); ++i) {
    if (has_children(i)) ++window_begin_[window(i) + 1];
  }
  std::partial_sum(window_begin_.begin(), window_begin_.end(), window_begin_.begin());
  ResizeInHugePages(window_begin_.back(), &contexts_);
  std::vector<std::size_t> next = window_begin_;
  for (std::size_t i = 0; i < lists.num_contexts(); ++i) {
    if (has_children(i)) contexts_[next[window(i)]++] = static_cast<std::uint32_t>(i);
  }
}

void ContextsBySuffix::Run(int num_threads,
                           const std::function<void(Span<std::uint32_t>)>& visit) const {
  RunParallel(window_begin_.size() - 1, num_threads, [&](std::size_t window) {
    visit(Span<std::uint32_t>(contexts_).Slice(window_begin_[window], window_begin_[window + 1]));
  });
}

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
  std::vector<std::uint32_t> links;
  ResizeInHugePages(lists.word.size(), &links);
  const ContextLinker linker(lists, below, below_links, links.data());
  ContextsBySuffix(lists, below, below_links).Run(num_threads, [&](Span<std::uint32_t> contexts) {
    linker.Link(contexts);
  });
  return links;
}

}  // namespace lattice_bpd
