#include "lattice_bpd/lm/trie.h"

#include <algorithm>
#include <cmath>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"

namespace lattice_bpd {
namespace {

void CheckSizes(const Trie& trie, int m) {
  const TrieLevel& level = trie.levels[m];
  const bool highest = m + 1 == trie.order();
  const std::size_t words = m == 0 ? 0 : level.size();
  const std::size_t backoffs = highest ? 0 : level.size();
  const std::size_t children = highest ? 0 : level.size() + 1;
  if (level.word.size() != words || level.backoff.size() != backoffs ||
      level.child_begin.size() != children) {
    throw ValueError(StrCat("trie: the arrays of order ", m + 1,
                            " disagree in size: ", level.size(), " log probabilities, ",
                            level.word.size(), " words, ", level.backoff.size(), " backoffs, ",
                            level.child_begin.size(), " child offsets"));
  }
  if (m == 0 && level.size() != trie.vocabulary.num_symbols()) {
    throw ValueError(StrCat("trie: ", level.size(), " unigrams; expected one for each of the ",
                            trie.vocabulary.num_symbols(), " symbols"));
  }
}

void CheckValues(const TrieLevel& level, int m) {
  for (std::size_t i = 0; i < level.size(); ++i) {
    if (!(level.log_prob[i] <= 0.0f) || std::isinf(level.log_prob[i])) {
      throw ValueError(StrCat("trie: log probability ", level.log_prob[i], " at entry ", i,
                              " of order ", m + 1, "; expected a finite number, 0 at most"));
    }
  }
  for (const float backoff : level.backoff) {
    if (!std::isfinite(backoff)) {
      throw ValueError(
          StrCat("trie: backoff ", backoff, " in order ", m + 1, "; expected a finite number"));
    }
  }
}

void CheckChildren(const Trie& trie, int m) {
  const TrieLevel& level = trie.levels[m];
  const TrieLevel& next = trie.levels[m + 1];
  const std::uint32_t num_symbols = trie.vocabulary.num_symbols();
  if (level.child_begin.front() != 0 || level.child_begin.back() != next.size()) {
    throw ValueError(
        StrCat("trie: the child offsets of order ", m + 1, " do not cover order ", m + 2));
  }
  InterruptCounter interrupts;
  for (std::size_t i = 0; i < level.size(); ++i) {
    interrupts.Count();
    const std::uint32_t begin = level.child_begin[i];
    const std::uint32_t end = level.child_begin[i + 1];
    if (begin > end) throw ValueError(StrCat("trie: child offsets of order ", m + 1, " decrease"));
    for (std::uint32_t c = begin; c < end; ++c) {
      if (next.word[c] >= num_symbols || (c > begin && next.word[c] <= next.word[c - 1])) {
        throw ValueError(StrCat("trie: the words of order ", m + 2,
                                " are not sorted and distinct for each history"));
      }
    }
  }
}

}  // namespace

void ValidateTrie(const Trie& trie) {
  if (trie.order() < 1 || trie.order() > kMaxOrder) {
    throw ValueError(StrCat("trie: order is ", trie.order(), "; expected 1..", kMaxOrder));
  }
  for (int m = 0; m < trie.order(); ++m) {
    CheckSizes(trie, m);
    CheckValues(trie.levels[m], m);
  }
  for (int m = 0; m + 1 < trie.order(); ++m) CheckChildren(trie, m);
}

}  // namespace lattice_bpd
