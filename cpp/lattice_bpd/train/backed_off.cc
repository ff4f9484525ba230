#include "lattice_bpd/train/backed_off.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lattice_bpd/lm/suffix_links.h"

namespace lattice_bpd {
namespace {

constexpr double kLeast = 1e-9;  // what a sum may leave, as in context_mass.cc

bool IsMissing(float log_prob) { return std::isinf(log_prob); }

// The children begin .. end - 1 of one context.
void FillContext(const std::vector<float>& lower, const std::vector<std::uint32_t>& links,
                 std::uint32_t begin, std::uint32_t end, std::vector<float>* log_prob) {
  double here = 0.0;
  double below = 0.0;
  bool missing = false;
  for (std::uint32_t i = begin; i < end; ++i) {
    missing |= IsMissing((*log_prob)[i]);
    if (IsMissing((*log_prob)[i])) continue;
    here += std::exp(static_cast<double>((*log_prob)[i]));
    below += std::exp(static_cast<double>(lower[links[i]]));
  }
  if (!missing) return;
  const double weight = std::log(std::max(1.0 - here, kLeast) / std::max(1.0 - below, kLeast));
  for (std::uint32_t i = begin; i < end; ++i) {
    if (!IsMissing((*log_prob)[i])) continue;
    (*log_prob)[i] = std::min(0.0f, static_cast<float>(weight + lower[links[i]]));
  }
}

}  // namespace

void AssignBackedOff(int num_threads, Trie* trie) {
  const bool any = std::any_of(trie->levels.begin() + 1, trie->levels.end(), [](const auto& level) {
    return std::any_of(level.log_prob.begin(), level.log_prob.end(), IsMissing);
  });
  if (!any) return;
  std::vector<std::uint32_t> links;
  for (int m = 1; m < trie->order(); ++m) {
    links = LinkLevel(trie->levels, m, links, num_threads);
    const std::vector<std::uint32_t>& child_begin = trie->levels[m - 1].child_begin;
    for (std::size_t context = 0; context + 1 < child_begin.size(); ++context) {
      FillContext(trie->levels[m - 1].log_prob, links, child_begin[context],
                  child_begin[context + 1], &trie->levels[m].log_prob);
    }
  }
}

}  // namespace lattice_bpd
