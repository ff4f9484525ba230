#include "lattice_bpd/lattice/acceptor.h"

#include <fst/connect.h>
#include <fst/topsort.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "lattice_bpd/base/score_grid.h"
#include "lattice_bpd/lattice/determinize.h"

namespace lattice_bpd {
namespace {

using StdFst = fst::VectorFst<fst::StdArc>;
using StateId = ScoreArc::StateId;

constexpr const char* kExpected = "; expected an OpenFst VectorFst over standard arcs";

constexpr const char* kAltered = "acceptor: the FST is cut or altered";

// Leaves the stream behind the header.
fst::FstHeader ReadHeader(const std::string& bytes, std::istream& stream) {
  fst::FstHeader header;
  if (!header.Read(stream, "acceptor")) {
    throw ValueError(StrCat("acceptor: ", bytes.size(), " bytes that are no FST", kExpected));
  }
  if (header.ArcType() != "standard") {
    throw ValueError(StrCat("acceptor: arcs of type \"", header.ArcType(), "\"", kExpected,
                            "; pywrapfst.arcmap(fst, map_type=\"to_std\") converts them"));
  }
  if (header.FstType() != "vector") {
    throw ValueError(StrCat("acceptor: an FST of type \"", header.FstType(), "\"", kExpected,
                            "; pywrapfst.convert(fst, \"vector\") makes it one"));
  }
  const std::int64_t num_states = header.NumStates();
  if (num_states < -1 || num_states > static_cast<std::int64_t>(bytes.size())) {
    throw ValueError(StrCat("acceptor: ", num_states, " states in ", bytes.size(),
                            " bytes; the FST is cut or altered"));
  }
  return header;
}

// OpenFst makes room for as many arcs as the bytes say, before it looks for them.
void CheckNumArcs(const std::string& bytes) {
  constexpr std::int64_t kArcBytes = 16;
  std::istringstream stream(bytes);
  const fst::FstHeader header = ReadHeader(bytes, stream);
  for (const int symbols : {fst::FstHeader::HAS_ISYMBOLS, fst::FstHeader::HAS_OSYMBOLS}) {
    if ((header.GetFlags() & symbols) == 0) continue;
    const std::unique_ptr<fst::SymbolTable> skipped(fst::SymbolTable::Read(stream, "acceptor"));
    if (skipped == nullptr) throw ValueError(kAltered);
  }
  float weight;
  std::int64_t num_arcs;
  for (std::int64_t state = 0; state != header.NumStates(); ++state) {  // -1: up to the end
    if (!fst::ReadType(stream, &weight) || !fst::ReadType(stream, &num_arcs)) break;
    const auto left = static_cast<std::int64_t>(bytes.size()) - stream.tellg();
    if (num_arcs < 0 || num_arcs > left / kArcBytes) throw ValueError(kAltered);
    stream.seekg(num_arcs * kArcBytes, std::ios::cur);
  }
}

std::unique_ptr<StdFst> ReadFst(const std::string& bytes) {
  CheckNumArcs(bytes);
  std::istringstream stream(bytes);
  std::unique_ptr<StdFst> read(StdFst::Read(stream, fst::FstReadOptions("acceptor")));
  if (read == nullptr) throw ValueError(kAltered);
  return read;
}

// A cost on the grid; +inf where there is no way.
ScoreWeight ToCost(float weight, StateId state) {
  if (std::isnan(weight) || (std::isinf(weight) && weight < 0)) {
    throw ValueError(StrCat("acceptor: weight ", weight, " at state ", state,
                            "; expected costs: numbers, or inf for no way through"));
  }
  return std::isinf(weight) ? ScoreWeight::Zero() : ScoreWeight(ToScoreGrid(weight));
}

void AddArcs(const StdFst& from, StateId state, ScoreVectorFst* out) {
  for (fst::ArcIterator<StdFst> arcs(from, state); !arcs.Done(); arcs.Next()) {
    const fst::StdArc& arc = arcs.Value();
    if (arc.ilabel != arc.olabel || arc.ilabel < 0) {
      throw ValueError(StrCat("acceptor: labels ", arc.ilabel, ":", arc.olabel, " at state ", state,
                              "; expected equal ones, token id + 1, or 0 for none; "
                              "project a transducer first"));
    }
    if (arc.nextstate < 0 || arc.nextstate >= from.NumStates()) {
      throw ValueError(StrCat("acceptor: an arc from state ", state, " to state ", arc.nextstate,
                              " of ", from.NumStates(), "; the FST is altered"));
    }
    const ScoreWeight cost = ToCost(arc.weight.Value(), state);
    if (cost == ScoreWeight::Zero()) continue;
    out->AddArc(state, ScoreArc(arc.ilabel, arc.ilabel, cost, arc.nextstate));
  }
}

// A copy with grid costs that trusts nothing the file says about itself.
ScoreVectorFst CopyChecked(const StdFst& from) {
  ScoreVectorFst out;
  for (StateId state = 0; state < from.NumStates(); ++state) out.AddState();
  if (from.Start() < -1 || from.Start() >= from.NumStates()) {
    throw ValueError(StrCat("acceptor: start state ", from.Start(), " of ", from.NumStates(),
                            "; the FST is altered"));
  }
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
  ScoreVectorFst acceptor = CopyChecked(*ReadFst(bytes));
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

}  // namespace lattice_bpd
