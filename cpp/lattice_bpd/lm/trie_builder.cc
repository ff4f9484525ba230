#include "lattice_bpd/lm/trie_builder.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr std::uint32_t kMissing = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kInserted = std::numeric_limits<std::uint64_t>::max();

bool Less(const NgramList& list, std::size_t a, std::size_t b) {
  return std::lexicographical_compare(list.ngram(a), list.ngram(a) + list.length, list.ngram(b),
                                      list.ngram(b) + list.length);
}

void Sort(NgramList* list) {
  std::vector<std::uint32_t> order(list->size());
  std::iota(order.begin(), order.end(), 0u);
  const auto less = [&](std::uint32_t a, std::uint32_t b) { return Less(*list, a, b); };
  if (std::is_sorted(order.begin(), order.end(), less)) return;
  std::sort(order.begin(), order.end(), less);
  NgramList sorted;
  sorted.length = list->length;
  for (const std::uint32_t i : order) {
    sorted.symbols.insert(sorted.symbols.end(), list->ngram(i), list->ngram(i) + list->length);
    sorted.log_prob.push_back(list->log_prob[i]);
    sorted.backoff.push_back(list->backoff[i]);
    sorted.source.push_back(list->source[i]);
  }
  *list = std::move(sorted);
}

void RefuseDuplicates(const NgramList& list) {
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (Less(list, i - 1, i)) continue;
    throw NgramListError(list.source[i], StrCat("the same ", list.length,
                                                "-gram occurs twice; remove one of the two"));
  }
}

// Both lists are sorted, so histories and their extensions are met in one walk.
std::vector<std::uint32_t> LinkChildren(const NgramList& histories, const NgramList& ngrams) {
  std::vector<std::uint32_t> begin(histories.size() + 1, 0);
  std::size_t h = 0;
  for (std::size_t i = 0; i < ngrams.size(); ++i) {
    const Symbol* ngram = ngrams.ngram(i);
    while (h < histories.size() &&
           !std::equal(ngram, ngram + histories.length, histories.ngram(h))) {
      begin[++h] = static_cast<std::uint32_t>(i);
    }
    if (h == histories.size()) {
      throw NgramListError(
          ngrams.source[i],
          StrCat("the history (first ", histories.length, " words) of this ", ngrams.length,
                 "-gram is not among the ", histories.length, "-grams; write the history too"));
    }
  }
  while (h < histories.size()) begin[++h] = static_cast<std::uint32_t>(ngrams.size());
  return begin;
}

Trie LinkTrie(const Vocabulary& vocabulary, const std::vector<NgramList>& lists) {
  Trie trie;
  trie.vocabulary = vocabulary;
  for (std::size_t m = 0; m < lists.size(); ++m) {
    const bool highest = m + 1 == lists.size();
    TrieLevel level;
    level.log_prob = lists[m].log_prob;
    if (!highest) level.backoff = lists[m].backoff;
    if (!highest) level.child_begin = LinkChildren(lists[m], lists[m + 1]);
    if (m > 0) {
      level.word.reserve(lists[m].size());
      for (std::size_t i = 0; i < lists[m].size(); ++i) {
        level.word.push_back(lists[m].ngram(i)[m]);
      }
    }
    trie.levels.push_back(std::move(level));
  }
  return trie;
}

// The index in `list` of these symbols, or kMissing.
std::uint32_t Find(const NgramList& list, const Symbol* symbols) {
  if (list.length == 1) return symbols[0];
  std::size_t low = 0;
  std::size_t high = list.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const Symbol* ngram = list.ngram(middle);
    if (std::lexicographical_compare(ngram, ngram + list.length, symbols, symbols + list.length)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool is_stored =
      low < list.size() && std::equal(symbols, symbols + list.length, list.ngram(low));
  return is_stored ? static_cast<std::uint32_t>(low) : kMissing;
}

// Adds to each list the suffixes of the list above that it lacks, from the highest order down, so
// that inserted n-grams get their own suffixes too. Returns whether there were any.
bool InsertSuffixes(std::vector<NgramList>* lists) {
  bool inserted = false;
  for (std::size_t m = lists->size() - 1; m >= 2; --m) {
    const NgramList& ngrams = (*lists)[m];
    NgramList& below = (*lists)[m - 1];
    std::vector<Symbol> missing;
    for (std::size_t i = 0; i < ngrams.size(); ++i) {
      if (Find(below, ngrams.ngram(i) + 1) != kMissing) continue;
      missing.insert(missing.end(), ngrams.ngram(i) + 1, ngrams.ngram(i) + ngrams.length);
    }
    if (missing.empty()) continue;
    inserted = true;
    NgramList extra;
    extra.length = below.length;
    extra.symbols = std::move(missing);
    extra.log_prob.resize(extra.symbols.size() / extra.length);
    extra.backoff.resize(extra.size());
    extra.source.assign(extra.size(), kInserted);
    Sort(&extra);
    for (std::size_t i = 0; i < extra.size(); ++i) {
      if (i > 0 && !Less(extra, i - 1, i)) continue;
      below.symbols.insert(below.symbols.end(), extra.ngram(i), extra.ngram(i) + extra.length);
      below.log_prob.push_back(0.0f);
      below.backoff.push_back(0.0f);
      below.source.push_back(kInserted);
    }
    Sort(&below);
  }
  return inserted;
}

// ln P of an inserted n-gram hw is backoff(h) + ln P(w | suffix(h)): both are one level below.
void FillInserted(std::vector<NgramList>* lists) {
  for (std::size_t m = 1; m + 1 < lists->size(); ++m) {
    NgramList& list = (*lists)[m];
    const NgramList& below = (*lists)[m - 1];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list.source[i] != kInserted) continue;
      const std::uint32_t history = Find(below, list.ngram(i));
      const std::uint32_t suffix = Find(below, list.ngram(i) + 1);
      list.log_prob[i] = std::min(0.0f, below.backoff[history] + below.log_prob[suffix]);
    }
  }
}

}  // namespace

Trie BuildTrie(const Vocabulary& vocabulary, std::vector<NgramList> lists) {
  for (NgramList& list : lists) {
    Sort(&list);
    RefuseDuplicates(list);
  }
  Trie trie = LinkTrie(vocabulary, lists);  // also refuses n-grams without their history
  if (InsertSuffixes(&lists)) {
    FillInserted(&lists);
    trie = LinkTrie(vocabulary, lists);
  }
  return trie;
}

}  // namespace lattice_bpd
