#include "lattice_bpd/lattice/acceptor.h"

#include <fst/connect.h>
#include <fst/topsort.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "lattice_bpd/base/fst_bytes.h"
#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/lattice/acceptor_arcs.h"
#include "lattice_bpd/lattice/determinize.h"

namespace lattice_bpd {
namespace {

using StdFst = fst::VectorFst<fst::StdArc>;
using StateId = ScoreArc::StateId;

constexpr const char* kExpected = "; expected an OpenFst VectorFst over standard arcs";

StdFst ReadFst(const std::string& bytes) {
  const std::optional<FstKind> kind = FstKindOf(bytes);
  if (!kind) {
    throw ValueError(StrCat("acceptor: ", bytes.size(), " bytes that are no FST", kExpected));
  }
  if (kind->arc_type != "standard") {
    throw ValueError(StrCat("acceptor: arcs of type \"", kind->arc_type, "\"", kExpected,
                            "; pywrapfst.arcmap(fst, map_type=\"to_std\") converts them"));
  }
  if (kind->fst_type != "vector") {
    throw ValueError(StrCat("acceptor: an FST of type \"", kind->fst_type, "\"", kExpected,
                            "; pywrapfst.convert(fst, \"vector\") makes it one"));
  }
  try {
    return ReadStdFst(bytes);
  } catch (const FormatError& error) {
    throw ValueError(StrCat("acceptor: the FST ", error.what()));
  }
}

// A cost on the grid; +inf where there is no way.
ScoreWeight ToCost(float weight, StateId state) {
  if (std::isnan(weight) || (std::isinf(weight) && weight < 0)) {
    throw ValueError(StrCat("acceptor: weight ", weight, " at state ", state,
                            "; expected costs: numbers, or inf for no way through"));
  }
  return std::isinf(weight) ? ScoreWeight::Zero() : ScoreWeight(ToScoreGrid(weight));
}

void CheckLabels(const fst::StdArc& arc, StateId state) {
  if (arc.ilabel == arc.olabel && arc.ilabel >= 0) return;
  throw ValueError(StrCat("acceptor: labels ", arc.ilabel, ":", arc.olabel, " at state ", state,
                          "; expected equal ones, token id + 1, or 0 for epsilon; project a "
                          "transducer first"));
}

void AddArcs(const StdFst& from, StateId state, ScoreVectorFst* out) {
  for (fst::ArcIterator<StdFst> arcs(from, state); !arcs.Done(); arcs.Next()) {
    const fst::StdArc& arc = arcs.Value();
    CheckLabels(arc, state);
    const ScoreWeight cost = ToCost(arc.weight.Value(), state);
    if (cost == ScoreWeight::Zero()) continue;
    out->AddArc(state, ScoreArc(arc.ilabel, arc.ilabel, cost, arc.nextstate));
  }
}

// A copy with grid costs.
ScoreVectorFst CopyChecked(const StdFst& from) {
  ScoreVectorFst out;
  for (StateId state = 0; state < from.NumStates(); ++state) out.AddState();
  if (from.Start() >= 0) out.SetStart(from.Start());
  for (StateId state = 0; state < from.NumStates(); ++state) {
    out.SetFinal(state, ToCost(from.Final(state).Value(), state));
    AddArcs(from, state, &out);
  }
  return out;
}

void CheckLength(const ScoreVectorFst& sorted) {
  std::vector<std::size_t> tokens_before(sorted.NumStates());
  for (StateId state = 0; state < sorted.NumStates(); ++state) {
    for (fst::ArcIterator<ScoreVectorFst> arcs(sorted, state); !arcs.Done(); arcs.Next()) {
      std::size_t& next = tokens_before[arcs.Value().nextstate];
      next = std::max(next, tokens_before[state] + 1);
      if (next > kMaxSlots) {
        throw ValueError(StrCat("acceptor: a path of more than ", kMaxSlots,
                                " arcs; cut it to what one call of the target verifies"));
      }
    }
  }
}

}  // namespace

ScoreVectorFst ReadAcceptor(const std::string& bytes) {
  ScoreVectorFst acceptor = CopyChecked(ReadFst(bytes));
  fst::Connect(&acceptor);
  if (!fst::TopSort(&acceptor)) {
    throw ValueError(
        "acceptor: it has a cycle, so its paths have no longest one; expected an acyclic acceptor "
        "(intersect it with a lattice first)");
  }
  CheckLength(acceptor);
  if (!IsDeterministic(acceptor)) {
    acceptor = Determinize(acceptor);
    fst::TopSort(&acceptor);
  }
  CheckFst(acceptor, "acceptor");
  return acceptor;
}

std::optional<SausageAcceptor> AsSausage(const ScoreVectorFst& acceptor) {
  const StateId last = acceptor.NumStates() - 1;
  if (last < 1) return std::nullopt;
  SausageAcceptor out;
  std::vector<TokenId> token_ids;
  std::vector<float> scores;
  for (StateId state = 0; state < last; ++state) {
    if (acceptor.Final(state) != ScoreWeight::Zero()) return std::nullopt;
    token_ids.clear();
    scores.clear();
    for (fst::ArcIterator<ScoreVectorFst> arcs(acceptor, state); !arcs.Done(); arcs.Next()) {
      const ScoreArc& arc = arcs.Value();
      const double score = -arc.weight.Value();
      if (arc.nextstate != state + 1 || static_cast<float>(score) != score) return std::nullopt;
      token_ids.push_back(static_cast<TokenId>(ToSymbol(arc.ilabel)));
      scores.push_back(static_cast<float>(score));
    }
    out.sausage.AddSlot(token_ids, scores);
  }
  out.final_cost = acceptor.Final(last).Value();
  return out;
}

TokenId MaxTokenId(const ScoreVectorFst& acceptor) {
  TokenId largest = -1;
  for (StateId state = 0; state < acceptor.NumStates(); ++state) {
    for (fst::ArcIterator<ScoreVectorFst> arcs(acceptor, state); !arcs.Done(); arcs.Next()) {
      largest = std::max(largest, static_cast<TokenId>(ToSymbol(arcs.Value().ilabel)));
    }
  }
  return largest;
}

AcceptorArcs ReadAcceptorArcs(const std::string& bytes) {
  const StdFst read = ReadFst(bytes);
  AcceptorArcs out;
  out.start = read.Start();
  out.offsets.push_back(0);
  for (StateId state = 0; state < read.NumStates(); ++state) {
    out.is_final.push_back(std::isfinite(read.Final(state).Value()));
    for (fst::ArcIterator<StdFst> arcs(read, state); !arcs.Done(); arcs.Next()) {
      const fst::StdArc& arc = arcs.Value();
      CheckLabels(arc, state);
      if (!(arc.weight.Value() < std::numeric_limits<float>::infinity())) continue;
      out.labels.push_back(arc.ilabel);
      out.next_states.push_back(arc.nextstate);
    }
    out.offsets.push_back(static_cast<std::int64_t>(out.labels.size()));
  }
  return out;
}

}  // namespace lattice_bpd
