#include "lattice_bpd/train/row_trie.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/train/backoff_weights.h"
#include "lattice_bpd/train/estimate.h"
#include "lattice_bpd/train/prune_scores.h"

namespace lattice_bpd {
namespace {

bool Less(const Symbol* a, const Symbol* b, int length) {
  return std::lexicographical_compare(a, a + length, b, b + length);
}

void CheckRows(const Vocabulary& vocabulary, const NgramRows& rows) {
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (Less(rows.ngram(i - 1), rows.ngram(i), rows.length)) continue;
    throw ValueError(StrCat("n-gram rows: row ", i, " of order ", rows.length,
                            " does not come after the row before; expected rising rows"));
  }
  for (const Symbol symbol : rows.symbols) {
    if (symbol < vocabulary.num_symbols()) continue;
    throw ValueError(
        StrCat("n-gram rows: symbol ", symbol, "; expected 0..", vocabulary.num_symbols() - 1));
  }
}

// All nodes of one level: the rows, and the contexts of the level above.
struct Nodes {
  int length = 0;
  std::vector<Symbol> symbols;

  std::size_t size() const { return symbols.size() / static_cast<std::size_t>(length); }
  const Symbol* ngram(std::size_t i) const { return symbols.data() + i * length; }
};

// Walks rows and the level above side by side, both sorted.
class LevelLinker {
 public:
  LevelLinker(const NgramRows& rows, const Nodes* above) : rows_(rows), above_(above) {}

  void Run(Nodes* nodes, std::vector<std::uint32_t>* row_node,
           std::vector<std::uint32_t>* child_begin) {
    nodes->length = rows_.length;
    while (row_ < rows_.size() || HasChild()) {
      const Symbol* next = Next();
      const auto node = static_cast<std::uint32_t>(nodes->size());
      nodes->symbols.insert(nodes->symbols.end(), next, next + rows_.length);
      if (above_ != nullptr) child_begin->push_back(static_cast<std::uint32_t>(child_));
      if (row_ < rows_.size() && Equal(rows_.ngram(row_), next)) {
        row_node->push_back(node);
        ++row_;
      }
      while (HasChild() && Equal(above_->ngram(child_), next)) ++child_;
    }
    if (above_ != nullptr) child_begin->push_back(static_cast<std::uint32_t>(child_));
  }

 private:
  bool HasChild() const { return above_ != nullptr && child_ < above_->size(); }
  bool Equal(const Symbol* a, const Symbol* b) const { return std::equal(a, a + rows_.length, b); }

  const Symbol* Next() const {
    if (!HasChild()) return rows_.ngram(row_);
    if (row_ == rows_.size()) return above_->ngram(child_);
    return Less(above_->ngram(child_), rows_.ngram(row_), rows_.length) ? above_->ngram(child_)
                                                                        : rows_.ngram(row_);
  }

  const NgramRows& rows_;
  const Nodes* above_;
  std::size_t row_ = 0;
  std::size_t child_ = 0;
};

std::vector<Symbol> LastSymbols(const Nodes& nodes) {
  std::vector<Symbol> last(nodes.size());
  for (std::size_t i = 0; i < last.size(); ++i) last[i] = nodes.ngram(i)[nodes.length - 1];
  return last;
}

std::vector<std::uint32_t> ChildrenOfSymbols(std::uint32_t num_symbols, const Nodes& bigrams) {
  std::vector<std::uint32_t> begin;
  std::uint32_t child = 0;
  for (Symbol symbol = 0; symbol < num_symbols; ++symbol) {
    begin.push_back(child);
    while (child < bigrams.size() && bigrams.ngram(child)[0] == symbol) ++child;
  }
  begin.push_back(child);
  return begin;
}

std::vector<std::uint32_t> ContextsOf(const std::vector<std::uint32_t>& nodes,
                                      const std::vector<std::uint32_t>& child_begin) {
  std::vector<std::uint32_t> contexts;
  contexts.reserve(nodes.size());
  std::uint32_t context = 0;
  for (const std::uint32_t node : nodes) {
    while (child_begin[context + 1] <= node) ++context;
    contexts.push_back(context);
  }
  return contexts;
}

template <typename T>
std::vector<T> Scatter(Span<T> of_rows, const std::vector<std::uint32_t>& nodes, std::size_t size,
                       T otherwise) {
  std::vector<T> values(size, otherwise);
  for (std::size_t i = 0; i < nodes.size(); ++i) values[nodes[i]] = of_rows[i];
  return values;
}

template <typename T>
std::vector<std::vector<T>> Gather(const std::vector<std::vector<std::uint32_t>>& nodes,
                                   const std::vector<std::vector<T>>& values) {
  std::vector<std::vector<T>> of_rows;
  for (std::size_t m = 1; m < nodes.size(); ++m) {
    of_rows.emplace_back();
    of_rows.back().reserve(nodes[m].size());
    for (const std::uint32_t node : nodes[m]) of_rows.back().push_back(values[m][node]);
  }
  return of_rows;
}

CountTrie CountTrieOfRows(const Vocabulary& vocabulary, const RowTrie& shape, CountLevel unigrams,
                          const CountsByOrder& counts, const CountsByOrder& context_counts) {
  CountTrie trie{vocabulary, std::vector<CountLevel>(shape.order())};
  trie.levels[0] = std::move(unigrams);
  if (shape.order() == 1) return trie;
  trie.levels[0].child_begin = shape.child_begin[0];
  for (int m = 1; m < shape.order(); ++m) {
    CountLevel& level = trie.levels[m];
    const std::size_t size = shape.word[m].size();
    level.word = shape.word[m];
    level.count = Scatter(counts[m - 1], shape.node[m], size, std::uint64_t{0});
    if (m + 1 == shape.order()) break;
    level.child_begin = shape.child_begin[m];
    level.context_count = Scatter(context_counts[m], shape.context[m + 1], size, std::uint64_t{1});
  }
  return trie;
}

}  // namespace

RowTrie LinkRows(const Vocabulary& vocabulary, const RowsByOrder& rows) {
  const std::size_t order = rows.size() + 1;
  RowTrie shape;
  shape.word.resize(order);
  shape.child_begin.resize(order);
  shape.node.resize(order);
  shape.context.resize(order);
  Nodes above;
  for (std::size_t m = order; --m > 0;) {
    CheckRows(vocabulary, rows[m - 1]);
    Nodes nodes;
    LevelLinker(rows[m - 1], m + 1 == order ? nullptr : &above)
        .Run(&nodes, &shape.node[m], &shape.child_begin[m]);
    shape.word[m] = LastSymbols(nodes);
    above = std::move(nodes);
  }
  if (order > 1) shape.child_begin[0] = ChildrenOfSymbols(vocabulary.num_symbols(), above);
  for (std::size_t m = 1; m < order; ++m) {
    shape.context[m] = ContextsOf(shape.node[m], shape.child_begin[m - 1]);
  }
  return shape;
}

Trie TrieOfRows(const Vocabulary& vocabulary, const RowTrie& shape, Span<float> unigrams,
                const LogProbsByOrder& log_probs) {
  Trie trie{vocabulary, std::vector<TrieLevel>(shape.order())};
  trie.levels[0].log_prob.assign(unigrams.begin(), unigrams.end());
  for (int m = 0; m < shape.order(); ++m) {
    TrieLevel& level = trie.levels[m];
    level.child_begin = shape.child_begin[m];
    if (m == 0) continue;
    level.word = shape.word[m];
    level.log_prob = Scatter(log_probs[m - 1], shape.node[m], level.word.size(),
                             -std::numeric_limits<float>::infinity());
  }
  return trie;
}

std::vector<std::vector<float>> EstimateRows(const Vocabulary& vocabulary, const RowsByOrder& rows,
                                             CountLevel unigrams, const CountsByOrder& counts,
                                             const CountsByOrder& context_counts,
                                             const std::vector<CountOfCounts>& count_of_counts,
                                             const EstimateOptions& options) {
  const RowTrie shape = LinkRows(vocabulary, rows);
  CountTrie part = CountTrieOfRows(vocabulary, shape, std::move(unigrams), counts, context_counts);
  const Trie trie = EstimateLm(std::move(part), options, /*report=*/nullptr, &count_of_counts);
  std::vector<std::vector<float>> log_probs(trie.levels.size());
  for (int m = 1; m < trie.order(); ++m) log_probs[m] = trie.levels[m].log_prob;
  log_probs.resize(shape.node.size());  // a part may have no rows of the highest orders
  return Gather(shape.node, log_probs);
}

std::vector<std::vector<double>> ContextProbsOfRows(const Trie& trie, const RowTrie& shape) {
  NgramScores probs = NgramProbs(trie, /*num_threads=*/1);
  probs.insert(probs.begin(), std::vector<double>());  // [m]: of the contexts of level m
  probs.pop_back();
  return Gather(shape.context, probs);
}

std::vector<std::vector<double>> RemovalCostsOfRows(const Trie& trie, const RowTrie& shape,
                                                    const ProbsByOrder& context_probs) {
  NgramScores probs(trie.levels.size());
  for (int m = 1; m < trie.order(); ++m) {
    probs[m - 1] = Scatter(context_probs[m - 1], shape.context[m], trie.levels[m - 1].size(), 0.0);
  }
  return Gather(shape.node, RelativeEntropyScores(trie, std::move(probs), /*num_threads=*/1));
}

std::vector<ContextBackoffs> BackoffsOfRows(Trie trie, const RowTrie& shape,
                                            const RowsByOrder& rows) {
  AssignBackoffWeights(/*num_threads=*/1, &trie);
  std::vector<ContextBackoffs> result(rows.size());
  for (std::size_t m = 1; m <= rows.size(); ++m) {
    ContextBackoffs& out = result[m - 1];
    const std::vector<std::uint32_t>& contexts = shape.context[m];
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      if (i > 0 && contexts[i] == contexts[i - 1]) continue;
      const Symbol* ngram = rows[m - 1].ngram(i);
      out.symbols.insert(out.symbols.end(), ngram, ngram + m);
      out.backoff.push_back(trie.levels[m - 1].backoff[contexts[i]]);
    }
  }
  return result;
}

}  // namespace lattice_bpd
