#include "lattice_bpd/train/count_targets.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/lm/trie.h"
#include "lattice_bpd/train/row_trie.h"

namespace lattice_bpd {
namespace {

using Row = std::array<Symbol, kMaxOrder>;

// All sequences concatenated, each with its <s>, and the target after each symbol.
struct Events {
  std::vector<Symbol> text;
  std::vector<TokenId> target;
  std::vector<std::size_t> begin;  // of each sequence, and the end

  // Calls visit(symbols, target) for each event with `length` symbols of history.
  template <typename Visit>
  void ForEach(std::size_t length, const Visit& visit) const {
    InterruptCounter interrupts;
    for (std::size_t i = 0; i + 1 < begin.size(); ++i) {
      for (std::size_t at = begin[i] + std::max<std::size_t>(length, 1); at <= begin[i + 1]; ++at) {
        interrupts.Count();
        if (target[at - 1] != kNoTarget) {
          visit(text.data() + at - length, static_cast<Symbol>(target[at - 1]));
        }
      }
    }
  }
};

Events ListEvents(const TokenSequences& sequences, Span<TokenId> targets,
                  const Vocabulary& vocabulary) {
  Events events;
  events.begin.push_back(0);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Span<TokenId> words = WordsOfSequence(sequences, vocabulary, i);
    const auto first = static_cast<std::size_t>(words.data() - sequences.token_ids.data());
    const bool named = first > static_cast<std::size_t>(sequences.offsets[i]);  // <s> is a token
    events.text.push_back(vocabulary.bos);
    events.target.push_back(named ? targets[first - 1] : kNoTarget);
    for (std::size_t j = 0; j < words.size(); ++j) {
      events.text.push_back(static_cast<Symbol>(words[j]));
      events.target.push_back(targets[first + j]);
    }
    events.begin.push_back(events.text.size());
  }
  return events;
}

void CheckTargets(const TokenSequences& sequences, Span<TokenId> targets,
                  const Vocabulary& vocabulary) {
  if (targets.size() != sequences.token_ids.size()) {
    throw ValueError(StrCat("n-gram counting: ", targets.size(), " targets for ",
                            sequences.token_ids.size(), " tokens; expected one for each"));
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] >= kNoTarget && targets[i] < static_cast<std::int64_t>(vocabulary.vocab_size)) {
      continue;
    }
    throw ValueError(StrCat("n-gram counting: target ", targets[i], " at index ", i,
                            "; expected -1 (none) or a token id in 0..", vocabulary.vocab_size - 1,
                            "; use a model of the text's own tokenizer"));
  }
}

// The distinct n-grams of one order, sorted, and how often each occurs.
NgramTable CountRows(const Events& events, int order) {
  std::vector<Row> rows;
  events.ForEach(order - 1, [&](const Symbol* history, Symbol target) {
    Row row{};
    std::copy(history, history + order - 1, row.begin());
    row[order - 1] = target;
    rows.push_back(row);
  });
  CheckInterrupted();
  std::sort(rows.begin(), rows.end());
  NgramTable table;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i] == rows[i - 1]) {
      ++table.counts.back();
      continue;
    }
    table.symbols.insert(table.symbols.end(), rows[i].begin(), rows[i].begin() + order);
    table.counts.push_back(1);
  }
  CheckLevelSize(order - 1, table.counts.size());
  return table;
}

std::vector<std::uint64_t> CountSymbols(const Events& events, const Vocabulary& vocabulary) {
  std::vector<std::uint64_t> counts(vocabulary.num_symbols(), 0);
  std::uint64_t sum = 0;
  events.ForEach(0, [&](const Symbol*, Symbol target) { ++counts[target], ++sum; });
  if (sum > 0) return counts;
  throw ValueError("n-gram counting: there is no target; expected one at least");
}

// The trie of all rows and of the paths to them.
CountTrie LinkTables(const Vocabulary& vocabulary, const std::vector<NgramTable>& tables,
                     std::vector<std::uint64_t> unigrams) {
  RowsByOrder rows;
  std::vector<std::vector<Symbol>> symbols;
  for (const NgramTable& table : tables) {
    symbols.emplace_back(table.symbols.begin(), table.symbols.end());
  }
  for (std::size_t m = 0; m < tables.size(); ++m) {
    rows.push_back({static_cast<int>(m) + 2, symbols[m]});
  }
  RowTrie shape = LinkRows(vocabulary, rows);
  CountTrie trie{vocabulary, std::vector<CountLevel>(tables.size() + 1)};
  trie.levels[0].count = std::move(unigrams);
  for (std::size_t m = 0; m < trie.levels.size(); ++m) {
    CountLevel& level = trie.levels[m];
    if (m > 0) level.count.assign(shape.word[m].size(), 0);
    for (std::size_t i = 0; m > 0 && i < tables[m - 1].counts.size(); ++i) {
      const std::uint64_t count = tables[m - 1].counts[i];
      level.count[shape.node[m][i]] = count;
      trie.levels[m - 1].context_count[shape.context[m][i]] += count;
    }
    if (m > 0) level.word = std::move(shape.word[m]);
    if (m + 1 == trie.levels.size()) break;
    level.context_count.assign(level.count.size(), 0);
    level.child_begin = std::move(shape.child_begin[m]);
  }
  return trie;
}

}  // namespace

CountTrie CountTargets(const TokenSequences& sequences, Span<TokenId> targets,
                       const Vocabulary& vocabulary, int order, int num_threads) {
  CheckOrder(order);
  CheckSequences(sequences, vocabulary);
  CheckTargets(sequences, targets, vocabulary);
  const Events events = ListEvents(sequences, targets, vocabulary);
  std::vector<std::uint64_t> unigrams = CountSymbols(events, vocabulary);
  if (order == 1) {
    CountTrie trie{vocabulary, std::vector<CountLevel>(1)};
    trie.levels[0].count = std::move(unigrams);
    return trie;
  }
  std::vector<NgramTable> tables(static_cast<std::size_t>(order) - 1);
  RunParallel(tables.size(), ResolveThreads(num_threads),
              [&](std::size_t m) { tables[m] = CountRows(events, static_cast<int>(m) + 2); });
  return LinkTables(vocabulary, tables, std::move(unigrams));
}

}  // namespace lattice_bpd
