#include "lattice_bpd/lattice/determinize.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace lattice_bpd {
namespace {

using StateId = ScoreArc::StateId;

constexpr StateId kMaxStates = 1 << 20;

// States where one label sequence may have led, with what each costs beyond the cheapest.
using Subset = std::map<StateId, double>;

class Determinizer {
 public:
  explicit Determinizer(const ScoreVectorFst& from) : from_(from) {}

  ScoreVectorFst Run() {
    if (from_.Start() == fst::kNoStateId) return {};
    Subset start = {{from_.Start(), 0.0}};
    FollowEpsilons(&start);
    out_.SetStart(StateOf(std::move(start)));
    for (StateId state = 0; state < static_cast<StateId>(subsets_.size()); ++state) {
      Expand(state, subsets_[state]->first);
    }
    return std::move(out_);
  }

 private:
  // States are in topological order, so each is visited before its successors.
  void FollowEpsilons(Subset* subset) const {
    for (auto at = subset->begin(); at != subset->end(); ++at) {
      for (fst::ArcIterator<ScoreVectorFst> arcs(from_, at->first); !arcs.Done(); arcs.Next()) {
        const ScoreArc& arc = arcs.Value();
        if (arc.ilabel == 0) Relax(arc.nextstate, at->second + arc.weight.Value(), subset);
      }
    }
  }

  static void Relax(StateId state, double cost, Subset* subset) {
    const auto [at, added] = subset->emplace(state, cost);
    if (!added) at->second = std::min(at->second, cost);
  }

  // Takes what all its states cost together off a subset.
  static double TakeCommonCost(Subset* subset) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [state, cost] : *subset) least = std::min(least, cost);
    for (auto& [state, cost] : *subset) cost -= least;
    return least;
  }

  StateId StateOf(Subset subset) {
    const auto [at, added] =
        states_.emplace(std::move(subset), static_cast<StateId>(subsets_.size()));
    if (added) {
      if (subsets_.size() == kMaxStates) {
        throw ValueError(StrCat("acceptor: too many ways to write the same tokens: more than ",
                                kMaxStates, " states without them; make it deterministic first"));
      }
      subsets_.push_back(&*at);
      out_.AddState();
    }
    return at->second;
  }

  void Expand(StateId state, const Subset& subset) {
    double final_cost = std::numeric_limits<double>::infinity();
    std::map<Label, Subset> next;
    for (const auto& [from, cost] : subset) {
      final_cost = std::min(final_cost, cost + from_.Final(from).Value());
      for (fst::ArcIterator<ScoreVectorFst> arcs(from_, from); !arcs.Done(); arcs.Next()) {
        const ScoreArc& arc = arcs.Value();
        if (arc.ilabel != 0) Relax(arc.nextstate, cost + arc.weight.Value(), &next[arc.ilabel]);
      }
    }
    out_.SetFinal(state, ScoreWeight(final_cost));
    for (auto& [label, targets] : next) {
      FollowEpsilons(&targets);
      const double cost = TakeCommonCost(&targets);
      out_.AddArc(state, ScoreArc(label, label, cost, StateOf(std::move(targets))));
    }
  }

  using Label = ScoreArc::Label;

  const ScoreVectorFst& from_;
  ScoreVectorFst out_;
  std::map<Subset, StateId> states_;
  std::vector<const std::pair<const Subset, StateId>*> subsets_;  // by state
};

}  // namespace

bool IsDeterministic(const ScoreVectorFst& acceptor) {
  std::vector<ScoreArc::Label> labels;
  for (StateId state = 0; state < acceptor.NumStates(); ++state) {
    labels.clear();
    for (fst::ArcIterator<ScoreVectorFst> arcs(acceptor, state); !arcs.Done(); arcs.Next()) {
      labels.push_back(arcs.Value().ilabel);
    }
    std::sort(labels.begin(), labels.end());
    const bool has_epsilon = !labels.empty() && labels.front() == 0;
    if (has_epsilon || std::adjacent_find(labels.begin(), labels.end()) != labels.end()) {
      return false;
    }
  }
  return true;
}

ScoreVectorFst Determinize(const ScoreVectorFst& acceptor) { return Determinizer(acceptor).Run(); }

}  // namespace lattice_bpd
