#include "lattice_bpd/lattice/word_lattice.h"

#include <algorithm>
#include <cmath>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/score_grid.h"

namespace lattice_bpd {
namespace {

constexpr double kMaxSum = 0x1p28;  // sums of grid scores are exact up to 2^29

bool IsWay(double cost) { return !(std::isinf(cost) && cost > 0); }

void CheckArrays(const WordLatticeArrays& in) {
  const std::size_t num_arcs = in.sources.size();
  if (in.targets.size() != num_arcs || in.words.size() != num_arcs ||
      in.symbols.size() != num_arcs || in.costs.size() != num_arcs ||
      in.final_costs.size() != in.num_states || num_arcs >= 1u << 31) {
    throw ValueError("word lattice: arrays of different sizes");
  }
  const auto check = [](double cost) {
    if (std::isnan(cost) || (std::isinf(cost) && cost < 0)) {
      throw ValueError(StrCat("word lattice: the cost ", cost, "; expected numbers, or inf"));
    }
  };
  const auto is_state = [&](std::int32_t state) {
    return state >= 0 && static_cast<std::uint32_t>(state) < in.num_states;
  };
  for (std::size_t i = 0; i < num_arcs; ++i) {
    if (!is_state(in.sources[i]) || !is_state(in.targets[i])) {
      throw ValueError(StrCat("word lattice: arc ", i, " from ", in.sources[i], " to ",
                              in.targets[i], "; expected states 0..", in.num_states - 1.0));
    }
    check(in.costs[i]);
  }
  for (const double cost : in.final_costs) check(cost);
  if (in.num_states > 0 && in.start >= in.num_states) {
    throw ValueError(
        StrCat("word lattice: start is ", in.start, "; expected 0..", in.num_states - 1));
  }
}

// The arcs of each state, in their order, those without a way left out.
struct Adjacency {
  std::vector<std::uint32_t> begin;
  std::vector<std::uint32_t> arcs;
};

Adjacency ArcsByState(const WordLatticeArrays& in, Span<std::int32_t> states) {
  Adjacency out;
  out.begin.assign(in.num_states + 1, 0);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (IsWay(in.costs[i])) ++out.begin[states[i] + 1];
  }
  for (std::size_t s = 0; s < in.num_states; ++s) out.begin[s + 1] += out.begin[s];
  out.arcs.resize(out.begin[in.num_states]);
  std::vector<std::uint32_t> at(out.begin.begin(), out.begin.end() - 1);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (IsWay(in.costs[i])) out.arcs[at[states[i]]++] = static_cast<std::uint32_t>(i);
  }
  return out;
}

// The states on ways from `from` along arcs to `ends`, marked.
std::vector<bool> Reachable(const Adjacency& arcs, Span<std::int32_t> ends,
                            std::vector<std::uint32_t> from, std::size_t num_states) {
  std::vector<bool> marks(num_states);
  for (const std::uint32_t state : from) marks[state] = true;
  while (!from.empty()) {
    const std::uint32_t state = from.back();
    from.pop_back();
    for (std::uint32_t i = arcs.begin[state]; i < arcs.begin[state + 1]; ++i) {
      const auto next = static_cast<std::uint32_t>(ends[arcs.arcs[i]]);
      if (marks[next]) continue;
      marks[next] = true;
      from.push_back(next);
    }
  }
  return marks;
}

// Topologically; fewer than `kept` where there is a cycle.
std::vector<std::uint32_t> Sorted(const WordLatticeArrays& in, const Adjacency& arcs,
                                  const std::vector<bool>& kept) {
  std::vector<std::uint32_t> waiting(in.num_states, 0);
  for (std::size_t i = 0; i < in.sources.size(); ++i) {
    if (IsWay(in.costs[i]) && kept[in.sources[i]]) ++waiting[in.targets[i]];
  }
  std::vector<std::uint32_t> order;
  for (std::uint32_t s = 0; s < in.num_states; ++s) {
    if (kept[s] && waiting[s] == 0) order.push_back(s);
  }
  for (std::size_t at = 0; at < order.size(); ++at) {
    for (std::uint32_t i = arcs.begin[order[at]]; i < arcs.begin[order[at] + 1]; ++i) {
      const auto next = static_cast<std::uint32_t>(in.targets[arcs.arcs[i]]);
      if (--waiting[next] == 0 && kept[next]) order.push_back(next);
    }
  }
  return order;
}

// Throws where a path's costs are too large.
void CheckSums(const WordLatticeArrays& in, const Adjacency& arcs,
               const std::vector<std::uint32_t>& order) {
  std::vector<double> largest(in.num_states, 0.0);  // of a path to the state
  for (const std::uint32_t state : order) {
    for (std::uint32_t i = arcs.begin[state]; i < arcs.begin[state + 1]; ++i) {
      double& next = largest[in.targets[arcs.arcs[i]]];
      next = std::max(next, largest[state] + std::abs(in.costs[arcs.arcs[i]]));
    }
    const double final_cost = IsWay(in.final_costs[state]) ? std::abs(in.final_costs[state]) : 0.0;
    if (largest[state] + final_cost < kMaxSum) continue;
    throw ValueError(StrCat("word lattice: the costs of a path add up to ",
                            largest[state] + final_cost, "; expected below 2^28; scale them"));
  }
}

// An arc of a cycle: back from a state that is not in the order, along arcs from such states.
std::uint32_t ArcOfCycle(const WordLatticeArrays& in, const std::vector<std::uint32_t>& order) {
  std::vector<bool> sorted(in.num_states);
  for (const std::uint32_t state : order) sorted[state] = true;
  const Adjacency into = ArcsByState(in, in.targets);
  std::vector<bool> seen(in.num_states);
  std::uint32_t state = 0;
  while (sorted[state]) ++state;
  for (;;) {
    seen[state] = true;
    std::uint32_t i = into.begin[state];
    while (sorted[in.sources[into.arcs[i]]]) ++i;
    state = static_cast<std::uint32_t>(in.sources[into.arcs[i]]);
    if (seen[state]) return into.arcs[i];
  }
}

struct Checked {
  LatticeCheck check;
  Adjacency arcs;
  std::vector<bool> ends;  // whether a path from the state ends
  std::vector<std::uint32_t> order;
};

Checked CheckAndSort(const WordLatticeArrays& in) {
  CheckArrays(in);
  Checked out;
  const auto fail = [&](LatticeFault fault, std::uint32_t index) {
    out.check = {fault, index};
    return out;
  };
  if (in.num_states == 0) return fail(LatticeFault::kNoPath, 0);
  out.arcs = ArcsByState(in, in.sources);
  const std::vector<bool> begun = Reachable(out.arcs, in.targets, {in.start}, in.num_states);
  for (std::uint32_t s = 0; s < in.num_states; ++s) {
    if (!begun[s]) return fail(LatticeFault::kUnreachable, s);
  }
  out.order = Sorted(in, out.arcs, begun);
  if (out.order.size() < in.num_states) {
    return fail(LatticeFault::kCycle, ArcOfCycle(in, out.order));
  }
  CheckSums(in, out.arcs, out.order);
  std::vector<std::uint32_t> finals;
  for (std::uint32_t s = 0; s < in.num_states; ++s) {
    if (IsWay(in.final_costs[s])) finals.push_back(s);
  }
  out.ends = Reachable(ArcsByState(in, in.targets), in.sources, finals, in.num_states);
  if (!out.ends[in.start]) return fail(LatticeFault::kNoPath, in.start);
  return out;
}

}  // namespace

LatticeCheck CheckWordLattice(const WordLatticeArrays& arrays) {
  return CheckAndSort(arrays).check;
}

WordLattice BuildWordLattice(const WordLatticeArrays& in) {
  const Checked checked = CheckAndSort(in);
  if (checked.check.fault != LatticeFault::kNone) {
    throw ValueError("word lattice: it has a cycle, a state that no path reaches, or no path");
  }
  WordLattice out;
  out.start = in.start;
  for (const std::uint32_t state : checked.order) {
    if (checked.ends[state]) out.order.push_back(state);
  }
  out.arc_begin.push_back(0);
  for (std::uint32_t state = 0; state < in.num_states; ++state) {
    const double final_cost = in.final_costs[state];
    out.final_costs.push_back(IsWay(final_cost) ? ToScoreGrid(final_cost) : final_cost);
    for (std::uint32_t i = checked.arcs.begin[state]; i < checked.arcs.begin[state + 1]; ++i) {
      const std::uint32_t arc = checked.arcs.arcs[i];
      const auto target = static_cast<std::uint32_t>(in.targets[arc]);
      if (!checked.ends[target]) continue;
      out.arcs.push_back({arc, target, in.words[arc], static_cast<Symbol>(in.symbols[arc]),
                          ToScoreGrid(in.costs[arc])});
    }
    std::stable_sort(out.arcs.begin() + out.arc_begin.back(), out.arcs.end(),
                     [](const auto& a, const auto& b) { return a.word < b.word; });
    out.arc_begin.push_back(static_cast<std::uint32_t>(out.arcs.size()));
  }
  return out;
}

}  // namespace lattice_bpd
