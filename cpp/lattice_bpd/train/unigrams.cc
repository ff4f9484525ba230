#include "lattice_bpd/train/unigrams.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lattice_bpd {
namespace {

bool IsEvent(const Vocabulary& vocabulary, std::uint64_t count, Symbol symbol, Unseen unseen) {
  return count > 0 || (unseen == Unseen::kUniform && symbol != vocabulary.bos);
}

AbsoluteDiscounts DiscountsOf(const CountOfCounts& n, const EstimateOptions& options,
                              TrainReport* report) {
  if (options.smoothing == Smoothing::kModifiedKneserNey) return ThreeDiscounts(1, n, report);
  return options.unseen == Unseen::kUniform ? OneDiscount(n) : AbsoluteDiscounts{};
}

}  // namespace

std::uint64_t CountUnigramEvents(const Vocabulary& vocabulary, const CountLevel& unigrams,
                                 Unseen unseen) {
  std::uint64_t events = 0;
  for (Symbol symbol = 0; symbol < unigrams.size(); ++symbol) {
    events += IsEvent(vocabulary, unigrams.count[symbol], symbol, unseen);
  }
  return events;
}

TrieLevel EstimateUnigrams(const Vocabulary& vocabulary, CountLevel counts,
                           const CountOfCounts& count_of_counts, const EstimateOptions& options,
                           TrainReport* report) {
  const AbsoluteDiscounts discounts = DiscountsOf(count_of_counts, options, report);
  double total = 0.0;
  double taken_off = 0.0;
  for (const std::uint64_t count : counts.count) {
    total += static_cast<double>(count);
    taken_off += discounts(count);
  }
  const double events = static_cast<double>(CountUnigramEvents(vocabulary, counts, options.unseen));
  const double share = taken_off / total / events;
  TrieLevel level;
  level.log_prob.assign(counts.size(), -kUnseenCost);
  for (Symbol symbol = 0; symbol < counts.size(); ++symbol) {
    const std::uint64_t count = counts.count[symbol];
    if (!IsEvent(vocabulary, count, symbol, options.unseen)) continue;
    const double prob = (static_cast<double>(count) - discounts(count)) / total + share;
    level.log_prob[symbol] = static_cast<float>(std::log(prob));
  }
  float& bos = level.log_prob[vocabulary.bos];
  bos = std::max(bos, kNeverLogProb);
  level.child_begin = std::move(counts.child_begin);
  return level;
}

}  // namespace lattice_bpd
