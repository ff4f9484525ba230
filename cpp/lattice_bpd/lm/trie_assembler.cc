#include "lattice_bpd/lm/trie_assembler.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/suffix_links.h"

namespace lattice_bpd {
namespace {

std::string Describe(const Symbol* ngram, int length) {
  std::string text;
  for (int i = 0; i < length; ++i) text += StrCat(i > 0 ? " " : "", ngram[i]);
  return text;
}

}  // namespace

TrieAssembler::TrieAssembler(const Vocabulary& vocabulary, Span<float> unigrams)
    : trie_{vocabulary, std::vector<TrieLevel>(1)} {
  if (unigrams.size() != vocabulary.num_symbols()) {
    throw ValueError(StrCat("LM assembly: ", unigrams.size(), " unigrams; expected ",
                            vocabulary.num_symbols(), ", one for each symbol"));
  }
  trie_.levels[0].log_prob.assign(unigrams.begin(), unigrams.end());
  trie_.levels[0].backoff.assign(unigrams.size(), 0.0f);
}

void TrieAssembler::Add(int length, Span<Symbol> symbols, Span<float> log_prob,
                        Span<float> backoff) {
  const std::size_t size = symbols.size() / static_cast<std::size_t>(std::max(length, 1));
  if (length < 1 || length > kMaxOrder || log_prob.size() != size || backoff.size() != size) {
    throw ValueError(StrCat("LM assembly: ", size, " n-grams of length ", length, " with ",
                            log_prob.size(), " probabilities and ", backoff.size(),
                            " backoffs; expected as many of each, and lengths 1..", kMaxOrder));
  }
  if (size == 0) return;
  if (length > trie_.order() + 1 || length < trie_.order()) {
    throw ValueError(StrCat("LM assembly: order ", length, " comes after order ", trie_.order(),
                            "; expected the orders one after the other"));
  }
  if (length > trie_.order()) BeginLevel(length - 1);
  for (std::size_t i = 0; i < size; ++i) {
    AddOne(symbols.data() + i * length, log_prob[i], backoff[i]);
  }
}

void TrieAssembler::BeginLevel(int level) {
  if (level > 1) CloseContextsUpTo(static_cast<std::uint32_t>(trie_.levels[level - 2].size()));
  trie_.levels.emplace_back();
  trie_.levels[level - 1].child_begin.assign(1, 0);
  next_context_ = 0;
  last_.clear();
}

void TrieAssembler::CloseContextsUpTo(std::uint32_t context) {
  std::vector<std::uint32_t>& begin = trie_.levels[trie_.order() - 2].child_begin;
  const auto end = static_cast<std::uint32_t>(trie_.levels.back().size());
  for (; next_context_ < context; ++next_context_) begin.push_back(end);
}

void TrieAssembler::AddOne(const Symbol* ngram, float log_prob, float backoff) {
  const int level = trie_.order() - 1;
  const int length = level + 1;
  if (ngram[0] >= trie_.vocabulary.num_symbols()) {
    throw ValueError(StrCat("LM assembly: symbol ", ngram[0], " is outside the vocabulary of ",
                            trie_.vocabulary.num_symbols(), " symbols"));
  }
  if (level == 0) {
    trie_.levels[0].backoff[ngram[0]] = backoff;
    return;
  }
  if (!last_.empty() &&
      !std::lexicographical_compare(last_.begin(), last_.end(), ngram, ngram + length)) {
    throw ValueError(StrCat("LM assembly: n-gram ", Describe(ngram, length), " comes after ",
                            Describe(last_.data(), length), "; expected rising n-grams"));
  }
  CloseContextsUpTo(FindContext(ngram));
  TrieLevel& out = trie_.levels[level];
  if (out.size() == std::numeric_limits<std::uint32_t>::max()) {
    throw ValueError(StrCat("LM assembly: order ", length, " has 2^32 n-grams or more; at most ",
                            "2^32 - 1 fit a model: raise min_counts or prune"));
  }
  out.word.push_back(ngram[level]);
  out.log_prob.push_back(log_prob);
  out.backoff.push_back(backoff);
  last_.assign(ngram, ngram + length);
}

// The node of all symbols but the last. Rising n-grams share most of their path.
std::uint32_t TrieAssembler::FindContext(const Symbol* ngram) {
  const int level = trie_.order() - 1;
  int shared = 0;
  while (!last_.empty() && shared < level && last_[shared] == ngram[shared]) ++shared;
  path_.resize(level);
  for (int m = shared; m < level; ++m) {
    if (m == 0) {
      path_[0] = ngram[0];
      continue;
    }
    const std::vector<std::uint32_t>& begin = trie_.levels[m - 1].child_begin;
    const std::uint32_t end = begin[path_[m - 1] + 1];
    path_[m] = FindChild(trie_.levels[m].word, begin[path_[m - 1]], end, ngram[m]);
    if (path_[m] != end) continue;
    throw ValueError(StrCat("LM assembly: n-gram ", Describe(ngram, level + 1), " came, but not ",
                            Describe(ngram, m + 1), "; expected every prefix: a file is missing"));
  }
  return path_[level - 1];
}

Trie TrieAssembler::Finish() {
  const int order = trie_.order();
  if (order > 1) CloseContextsUpTo(static_cast<std::uint32_t>(trie_.levels[order - 2].size()));
  trie_.levels.back().backoff = {};
  return std::move(trie_);
}

}  // namespace lattice_bpd
