#include "lattice_bpd/draft/openfst_paths.h"

#include <fst/compose.h>
#include <fst/matcher.h>
#include <fst/shortest-path.h>
#include <fst/topsort.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "lattice_bpd/lm/lm_fst.h"
#include "lattice_bpd/lm/lm_score_fst.h"

namespace lattice_bpd {
namespace {

using StateId = ScoreArc::StateId;

bool Better(const ScoredPath& a, const ScoredPath& b) {
  return a.cost < b.cost || (a.cost == b.cost && a.token_ids < b.token_ids);
}

using LatticeMatcher = fst::SortedMatcher<ScoreVectorFst>;
using LmMatcher = fst::PhiMatcher<fst::SortedMatcher<fst::ConstFst<ScoreArc>>>;
using Filter = fst::TrivialComposeFilter<LatticeMatcher, LmMatcher>;
using StateTable = fst::GenericComposeStateTable<ScoreArc, Filter::FilterState>;

// Starts composition in the LM state of the context; the LM's FST itself is shared and constant.
// The lattice's start state has no arc into it, so it marks the start of the composition.
class StartStateTable : public StateTable {
 public:
  StartStateTable(const ScoreVectorFst& lattice, const fst::ConstFst<ScoreArc>& lm,
                  StateId lm_start = 0)
      : StateTable(lattice, lm), lattice_start_(lattice.Start()), lm_start_(lm_start) {}

  StateId FindState(const StateTuple& tuple) {
    if (tuple.StateId1() != lattice_start_) return StateTable::FindState(tuple);
    return StateTable::FindState(StateTuple(lattice_start_, lm_start_, tuple.GetFilterState()));
  }

 private:
  StateId lattice_start_;
  StateId lm_start_;
};

// The paths of an n-shortest-paths result: arc i of its start state leads into path i.
std::vector<ScoredPath> ReadPaths(const ScoreVectorFst& shortest) {
  std::vector<ScoredPath> paths;
  if (shortest.Start() == fst::kNoStateId) return paths;
  for (fst::ArcIterator<ScoreVectorFst> first(shortest, shortest.Start()); !first.Done();
       first.Next()) {
    ScoredPath path;
    ScoreArc arc = first.Value();
    for (;;) {
      path.cost += arc.weight.Value();
      if (arc.ilabel != 0) path.token_ids.push_back(static_cast<TokenId>(ToSymbol(arc.ilabel)));
      if (shortest.NumArcs(arc.nextstate) == 0) break;
      arc = fst::ArcIterator<ScoreVectorFst>(shortest, arc.nextstate).Value();
    }
    path.cost += shortest.Final(arc.nextstate).Value();
    paths.push_back(std::move(path));
  }
  return paths;
}

std::vector<ScoredPath> FindShortestPaths(const ScoreVectorFst& paths, int count) {
  ScoreVectorFst shortest;
  constexpr float kExact = 0.0f;
  fst::ShortestPath(paths, &shortest, count, /*unique=*/false, /*first_path=*/false,
                    ScoreWeight::Zero(), fst::kNoStateId, kExact);
  CheckFst(shortest, "shortest paths");
  return ReadPaths(shortest);
}

// The paths of exactly one cost with the smallest token ids, in order.
class TiedPaths {
 public:
  TiedPaths(const ScoreVectorFst& fst, double cost) : fst_(fst), cost_(cost) {
    to_final_.resize(fst.NumStates(), std::numeric_limits<double>::infinity());
    for (const StateId state : FromLastToFirst(fst)) {
      to_final_[state] = fst.Final(state).Value();
      for (fst::ArcIterator<ScoreVectorFst> arcs(fst, state); !arcs.Done(); arcs.Next()) {
        const ScoreArc& arc = arcs.Value();
        to_final_[state] =
            std::min(to_final_[state], arc.weight.Value() + to_final_[arc.nextstate]);
      }
    }
  }

  std::vector<ScoredPath> Find(std::size_t count) {
    count_ = count;
    Walk(fst_.Start(), 0.0);
    return std::move(found_);
  }

 private:
  // States in reverse topological order.
  static std::vector<StateId> FromLastToFirst(const ScoreVectorFst& fst) {
    std::vector<StateId> order;
    bool acyclic = true;
    fst::TopOrderVisitor<ScoreArc> visitor(&order, &acyclic);
    fst::DfsVisit(fst, &visitor);
    std::vector<StateId> states(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      states[order.size() - 1 - order[i]] = static_cast<StateId>(i);
    }
    return states;
  }

  // Only prefixes that some path of this cost or a lower one completes are followed, and there
  // are fewer than p of the latter.
  void Walk(StateId state, double cost) {
    if (cost + fst_.Final(state).Value() == cost_) found_.push_back({cost_, prefix_});
    std::vector<ScoreArc> arcs;
    for (fst::ArcIterator<ScoreVectorFst> i(fst_, state); !i.Done(); i.Next()) {
      const ScoreArc& arc = i.Value();
      if (cost + arc.weight.Value() + to_final_[arc.nextstate] <= cost_) arcs.push_back(arc);
    }
    std::sort(arcs.begin(), arcs.end(), fst::ILabelCompare<ScoreArc>());
    for (const ScoreArc& arc : arcs) {
      if (found_.size() == count_) return;
      prefix_.push_back(static_cast<TokenId>(ToSymbol(arc.ilabel)));
      Walk(arc.nextstate, cost + arc.weight.Value());
      prefix_.pop_back();
    }
  }

  const ScoreVectorFst& fst_;
  const double cost_;
  std::size_t count_ = 0;
  std::vector<double> to_final_;
  std::vector<TokenId> prefix_;
  std::vector<ScoredPath> found_;
};

// The lattice with the LM's symbols as output.
ScoreVectorFst WithLmSymbols(ScoreVectorFst lattice, const Vocabulary& vocabulary) {
  for (StateId state = 0; state < lattice.NumStates(); ++state) {
    for (fst::MutableArcIterator<ScoreVectorFst> i(&lattice, state); !i.Done(); i.Next()) {
      ScoreArc arc = i.Value();
      if (arc.ilabel != 0) {
        arc.olabel = ToLabel(vocabulary.SymbolOf(static_cast<TokenId>(ToSymbol(arc.ilabel))));
      }
      i.SetValue(arc);
    }
  }
  return lattice;
}

}  // namespace

ScoreVectorFst ComposeWithLm(const ScoreVectorFst& given, const BackoffLm* lm, const LmState& start,
                             double alpha) {
  if (lm == nullptr) return given;
  const ScoreVectorFst lattice = WithLmSymbols(given, lm->vocabulary());
  const std::shared_ptr<const ScoreFst> acceptor = lm->acceptor_cache().Get(*lm, alpha);
  fst::ComposeFstImplOptions<LatticeMatcher, LmMatcher, Filter, StartStateTable> options;
  options.gc = false;
  options.matcher1 = new LatticeMatcher(lattice, fst::MATCH_NONE);
  options.matcher2 = new LmMatcher(acceptor->fst, fst::MATCH_INPUT, FailureLabel(*lm), false,
                                   fst::MATCHER_REWRITE_NEVER);
  options.state_table = new StartStateTable(lattice, acceptor->fst, FstState(*lm, start));
  const fst::ComposeFst<ScoreArc> composed(lattice, acceptor->fst, options);
  ScoreVectorFst out(composed);
  CheckFst(out, "composition of lattice and LM");
  return out;
}

std::vector<ScoredPath> FindBestPaths(const ScoreVectorFst& fst, std::size_t count) {
  // One more than wanted: ShortestPath alone breaks a tie for the last path arbitrarily.
  std::vector<ScoredPath> paths = FindShortestPaths(fst, static_cast<int>(count) + 1);
  std::sort(paths.begin(), paths.end(), Better);
  if (paths.size() <= count) return paths;
  const double last_cost = paths[count - 1].cost;
  if (paths[count].cost == last_cost) {
    const auto tied = std::find_if(paths.begin(), paths.end(),
                                   [&](const ScoredPath& path) { return path.cost == last_cost; });
    paths.erase(tied, paths.end());
    std::vector<ScoredPath> rest = TiedPaths(fst, last_cost).Find(count - paths.size());
    paths.insert(paths.end(), std::make_move_iterator(rest.begin()),
                 std::make_move_iterator(rest.end()));
  }
  paths.resize(count);
  return paths;
}

}  // namespace lattice_bpd
