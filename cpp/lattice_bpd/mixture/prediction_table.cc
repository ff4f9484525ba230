#include "lattice_bpd/mixture/prediction_table.h"

#include <algorithm>
#include <utility>

namespace lattice_bpd {
namespace {

constexpr double kNewer = 0.5;   // weight of a new prediction in the average
constexpr double kLonger = 0.7;  // weight of the longer key

// Of the last `length` tokens. Where two have one key, drafts are wrong at worst.
std::uint64_t KeyOf(const LastTokens& last, int length) {
  std::uint64_t key = static_cast<std::uint64_t>(length) << 32;  // no token makes it 0
  for (int i = 0; i < length; ++i) {
    key = (key ^ last.tokens[i]) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  }
  return key;
}

// Adds the tokens of a prediction to out[0 .. count - 1], of which each occurs once, while there
// are fewer than `most`, and their probabilities times `weight`. Returns the new count.
int Merge(const Prediction& from, double weight, int most, Successor* out, int count) {
  for (int i = 0; i < kPredictions && from.probs[i] > 0.0f; ++i) {
    int at = 0;
    while (at < count && out[at].token != from.tokens[i]) ++at;
    if (at == most) continue;
    if (at == count) out[count++] = {from.tokens[i], 0.0};
    out[at].prob += weight * from.probs[i];
  }
  return count;
}

Prediction Average(const Prediction& old, const Prediction& added) {
  Successor both[2 * kPredictions];
  int count = Merge(added, kNewer, 2 * kPredictions, both, 0);
  count = Merge(old, 1.0 - kNewer, 2 * kPredictions, both, count);
  std::stable_sort(both, both + count,
                   [](const Successor& a, const Successor& b) { return a.prob > b.prob; });
  Prediction average;
  for (int i = 0; i < std::min(count, kPredictions); ++i) {
    average.tokens[i] = both[i].token;
    average.probs[i] = static_cast<float>(both[i].prob);
  }
  return average;
}

}  // namespace

LastTokens LastTokens::Then(Symbol token) const {
  LastTokens next;
  next.count = std::min(count + 1, kPredictionLength);
  next.tokens[0] = token;
  std::copy(tokens, tokens + kPredictionLength - 1, next.tokens + 1);
  return next;
}

const PredictionTable::Entry* PredictionTable::Generation::Find(std::uint64_t key) const {
  if (table.empty()) return nullptr;
  const std::size_t mask = table.size() - 1;
  for (std::size_t at = key & mask; table[at] != 0; at = (at + 1) & mask) {
    if (entries[table[at] - 1].key == key) return &entries[table[at] - 1];
  }
  return nullptr;
}

void PredictionTable::Generation::Put(std::uint32_t index) {
  const std::size_t mask = table.size() - 1;
  std::size_t at = entries[index].key & mask;
  while (table[at] != 0) at = (at + 1) & mask;
  table[at] = index + 1;
}

void PredictionTable::Generation::Insert(const Entry& entry) {
  entries.push_back(entry);
  const auto count = static_cast<std::uint32_t>(entries.size());
  if (2 * entries.size() <= table.size()) return Put(count - 1);
  table.assign(std::max<std::size_t>(64, 2 * table.size()), 0);
  for (std::uint32_t index = 0; index < count; ++index) Put(index);
}

const Prediction* PredictionTable::Lookup(std::uint64_t key) const {
  const Entry* entry = young_.Find(key);
  if (entry == nullptr) entry = old_.Find(key);
  return entry == nullptr ? nullptr : &entry->prediction;
}

void PredictionTable::Add(const LastTokens& last, const Prediction& prediction) {
  for (int length = 1; length <= last.count; ++length) {
    const std::uint64_t key = KeyOf(last, length);
    if (const Entry* young = young_.Find(key)) {
      Prediction* known = &young_.entries[young - young_.entries.data()].prediction;
      *known = Average(*known, prediction);
      continue;
    }
    const Entry* old = old_.Find(key);
    const Entry added{key, old == nullptr ? prediction : Average(old->prediction, prediction)};
    if (young_.entries.size() >= max_keys_) old_ = std::exchange(young_, Generation());
    young_.Insert(added);
  }
}

int PredictionTable::Find(const LastTokens& last, const PredictionTable* others, Successor* out,
                          SourceMatch* match) const {
  *match = {};
  int count = 0;
  const Prediction* known[kPredictionLength] = {};
  for (int length = last.count; length > 0; --length) {
    const std::uint64_t key = KeyOf(last, length);
    const Prediction*& of_key = known[length - 1];
    of_key = Lookup(key);
    if (of_key == nullptr && others != nullptr) of_key = others->Lookup(key);
    if (of_key == nullptr) continue;
    match->length = std::max(match->length, static_cast<std::uint32_t>(length));
    count = Merge(*of_key, 0.0, kPredictions, out, count);
  }
  double weight = 1.0;
  for (const Prediction* of_key : known) {
    if (of_key == nullptr) continue;
    for (int at = 0; at < count; ++at) out[at].prob *= 1.0 - weight;
    Merge(*of_key, weight, count, out, count);
    weight = kLonger;
  }
  match->is_active = count > 0;
  for (int at = 0; at < count; ++at) match->top = std::max(match->top, out[at].prob);
  return count;
}

}  // namespace lattice_bpd
