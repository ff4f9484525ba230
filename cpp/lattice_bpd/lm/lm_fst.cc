#include "lattice_bpd/lm/lm_fst.h"

#include <fst/arcsort.h>

#include <algorithm>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/openfst.h"
#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/lm/lm_score_fst.h"

namespace lattice_bpd {
namespace {

constexpr std::uint64_t kMaxExpandedArcs = std::uint64_t{1} << 28;

// The node of the whole history; 0 for the empty one.
std::uint32_t Longest(const LmState& state) {
  return state.length == 0 ? 0 : state.nodes[state.length - 1];
}

// Visits every history, the shorter before the longer that extends it.
template <typename Visit>
void ForEachState(const BackoffLm& lm, const LmState& state, const Visit& visit) {
  visit(state);
  if (state.length + 1 >= static_cast<std::uint32_t>(lm.order())) return;
  const auto [first, last] = lm.Children(state.length, Longest(state));
  for (std::uint32_t node = first; node < last; ++node) {
    const Symbol word = lm.levels()[state.length].Key(node);
    if (word >= lm.vocabulary().num_symbols()) continue;  // a damaged file
    if (lm.vocabulary().is_unlisted(word)) continue;      // <unk> comes too
    const LmState longer = lm.Query(state, word).next;
    if (longer.length > state.length) ForEachState(lm, longer, visit);
  }
}

std::uint64_t NumStates(const BackoffLm& lm) {
  std::uint64_t count = 1;
  for (int m = 0; m + 1 < lm.order(); ++m) count += lm.levels()[m].size();
  return count;
}

// Adds the arcs of one history, those of <unk> if has_unk. `cost` turns a natural log into an arc's
// weight.
template <typename Arc, typename Cost>
void AddArcs(const BackoffLm& lm, const LmState& state, const Cost& cost, bool has_unk,
             fst::VectorFst<Arc>* out) {
  const Vocabulary& vocabulary = lm.vocabulary();
  const std::int32_t from = FstState(lm, state);
  const PackedLevel& level = lm.levels()[state.length];
  const auto [first, last] = lm.Children(state.length, Longest(state));
  out->ReserveArcs(from, last - first + 1);
  for (std::uint32_t node = first; node < last; ++node) {
    const Symbol word = level.Key(node);
    const bool has_arc = vocabulary.is_token(word) || (has_unk && word == vocabulary.unk);
    if (!has_arc || vocabulary.is_unlisted(word)) continue;
    const std::int32_t to = FstState(lm, lm.Query(state, word).next);
    out->AddArc(from, Arc(ToLabel(word), ToLabel(word), cost(level.LogProb(node)), to));
  }
  if (state.length == 0) return;
  LmState suffix;
  suffix.length = state.length - 1;
  std::copy(state.nodes, state.nodes + suffix.length, suffix.nodes);
  const float backoff = lm.levels()[state.length - 1].Backoff(Longest(state));
  const Label failure = FailureLabel(lm);
  out->AddArc(from, Arc(failure, failure, cost(backoff), FstState(lm, suffix)));
}

// Adds an arc for every token id, whatever backing off it takes.
template <typename Arc, typename Cost>
void AddExpandedArcs(const BackoffLm& lm, const LmState& state, const Cost& cost,
                     fst::VectorFst<Arc>* out) {
  const std::int32_t from = FstState(lm, state);
  for (Symbol word = 0; word < lm.vocabulary().vocab_size; ++word) {
    const LmStep step = lm.Query(state, word);
    out->AddArc(from, Arc(ToLabel(word), ToLabel(word), cost(step.TotalLogProb()),
                          FstState(lm, step.next)));
  }
}

// Gives the token ids that are <unk> its arcs; its own remains if it is a token id.
void ReplaceUnkArcs(const Vocabulary& vocabulary, fst::VectorFst<fst::StdArc>* out) {
  const Label unk = ToLabel(vocabulary.unk);
  std::vector<Label> labels;
  for (Symbol id = 0; id < vocabulary.vocab_size; ++id) {
    if (vocabulary.ListedOrUnk(id) == vocabulary.unk) labels.push_back(ToLabel(id));
  }
  std::uint64_t num_arcs = 0;
  for (int state = 0; state < out->NumStates(); ++state) {
    std::vector<fst::StdArc> arcs;
    for (fst::ArcIterator<fst::StdFst> i(*out, state); !i.Done(); i.Next()) {
      const fst::StdArc& arc = i.Value();
      if (arc.ilabel != unk) arcs.push_back(arc);
      if (arc.ilabel != unk) continue;
      for (const Label label : labels) {
        arcs.emplace_back(label, label, arc.weight, arc.nextstate);
      }
    }
    num_arcs += arcs.size();
    if (num_arcs > kMaxExpandedArcs) {
      throw ValueError(StrCat("to_pywrapfst: ", labels.size(), " token ids are <unk> to the LM, ",
                              "which has too many n-grams with it to write out an arc for each"));
    }
    std::sort(arcs.begin(), arcs.end(), fst::ILabelCompare<fst::StdArc>());
    out->DeleteArcs(state);
    for (const fst::StdArc& arc : arcs) out->AddArc(state, arc);
  }
}

template <typename Arc, typename AddStateArcs>
fst::VectorFst<Arc> BuildFst(const BackoffLm& lm, const AddStateArcs& add_state_arcs) {
  fst::VectorFst<Arc> out;
  out.ReserveStates(NumStates(lm));
  for (std::uint64_t i = NumStates(lm); i > 0; --i) out.SetFinal(out.AddState());
  ForEachState(lm, LmState{}, [&](const LmState& state) { add_state_arcs(state, &out); });
  out.SetStart(0);
  return out;
}

}  // namespace

std::int32_t FstState(const BackoffLm& lm, const LmState& state) {
  if (state.length == 0) return 0;
  std::uint64_t id = 1 + std::uint64_t{Longest(state)};
  for (std::uint32_t m = 0; m + 1 < state.length; ++m) id += lm.levels()[m].size();
  return static_cast<std::int32_t>(id);
}

std::shared_ptr<const ScoreFst> AcceptorCache::Get(const BackoffLm& lm, double scale) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t i = entries_.size(); i-- > 0;) {
    if (entries_[i].first == scale) return entries_[i].second;
  }
  const auto cost = [scale](double natural_log) {
    return ScoreWeight(-ToScoreGrid(scale * natural_log));
  };
  const auto vector_fst =
      BuildFst<ScoreArc>(lm, [&](const LmState& state, fst::VectorFst<ScoreArc>* out) {
        AddArcs(lm, state, cost, /*has_unk=*/true, out);
      });
  CheckFst(vector_fst, "the LM as an FST");
  auto built = std::make_shared<const ScoreFst>(vector_fst);
  if (entries_.size() == kCapacity) entries_.erase(entries_.begin());
  entries_.emplace_back(scale, built);
  return built;
}

std::string LmToFstBytes(const BackoffLm& lm, const LmState& start,
                         const LmExportOptions& options) {
  const std::uint64_t vocab_size = lm.vocabulary().vocab_size;
  if (options.expand_failures && NumStates(lm) * vocab_size > kMaxExpandedArcs) {
    throw ValueError(StrCat("to_pywrapfst: ", NumStates(lm), " states with ", vocab_size,
                            " arcs each are too many to write out; leave failure arcs in "
                            "(expand_failures=False) or use a smaller LM"));
  }
  const auto cost = [](double natural_log) {
    return fst::TropicalWeight(static_cast<float>(-natural_log));
  };
  const bool has_unk = lm.vocabulary().unlisted != nullptr;
  auto out = BuildFst<fst::StdArc>(lm, [&](const LmState& state, fst::VectorFst<fst::StdArc>* fst) {
    if (options.expand_failures) {
      AddExpandedArcs(lm, state, cost, fst);
    } else {
      AddArcs(lm, state, cost, has_unk, fst);
    }
    if (options.end_of_sentence) {
      const double log_prob = lm.Query(state, lm.vocabulary().eos).TotalLogProb();
      fst->SetFinal(FstState(lm, state), cost(log_prob));
    }
  });
  if (has_unk && !options.expand_failures) ReplaceUnkArcs(lm.vocabulary(), &out);
  out.SetStart(FstState(lm, start));
  CheckFst(out, "to_pywrapfst");
  return options.const_fst ? FstToBytes(fst::ConstFst<fst::StdArc>(out)) : FstToBytes(out);
}

}  // namespace lattice_bpd
