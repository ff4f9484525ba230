#include "lattice_bpd/lm/lm_from_fst.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/fst_bytes.h"
#include "lattice_bpd/base/mapped_file.h"
#include "lattice_bpd/lm/lm_fst.h"
#include "lattice_bpd/lm/trie_builder.h"

namespace lattice_bpd {
namespace {

using StdFst = fst::VectorFst<fst::StdArc>;
using History = std::vector<Symbol>;

constexpr double kSameCost = 1e-5;

class FstReader {
 public:
  FstReader(const std::string& path, const FstImportOptions& options)
      : path_(path), vocabulary_(MakeVocabulary(options.vocab_size, options.special_ids)) {
    fst_ = ReadFile();
    if (fst_.Start() == fst::kNoStateId) Fail("has no start state");
    failure_label_ = options.failure_label.value_or(FindFailureLabel());
  }

  std::shared_ptr<const BackoffLm> Read() {
    FindStates();
    NameStates();
    MakeLists();
    try {
      return BackoffLm::FromTrie(BuildTrie(vocabulary_, std::move(lists_)));
    } catch (const NgramListError& error) {
      Fail("has two arcs for one n-gram, or none for a history (", error.what(), ")");
    }
  }

 private:
  struct State {
    int depth = 0;  // symbols of history: failure arcs to the empty one
    fst::StdArc::StateId suffix = fst::kNoStateId;
    float backoff = 0.0f;
    bool named = false;
    History history;
  };

  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    throw FormatError(StrCat(path_, ": the FST ", parts...));
  }

  template <typename Visit>  // visit(arc)
  void ForEachArc(fst::StdArc::StateId state, const Visit& visit) const {
    for (fst::ArcIterator<StdFst> arcs(fst_, state); !arcs.Done(); arcs.Next()) {
      visit(arcs.Value());
    }
  }

  StdFst ReadFile() const {
    const MappedFile file(path_);
    const std::string bytes(reinterpret_cast<const char*>(file.data()), file.size());
    if (!FstKindOf(bytes)) Fail("is no OpenFst file of type vector or const over standard arcs");
    try {
      return ReadStdFst(bytes);
    } catch (const FormatError& error) {
      Fail(error.what());
    }
  }

  Label FindFailureLabel() const {
    bool epsilons = false;
    for (fst::StateIterator<StdFst> states(fst_); !states.Done(); states.Next()) {
      ForEachArc(states.Value(), [&](const fst::StdArc& arc) { epsilons |= arc.ilabel == 0; });
    }
    return epsilons ? 0 : ToLabel(vocabulary_.num_symbols());
  }

  void FindStates() {
    for (fst::StateIterator<StdFst> states(fst_); !states.Done(); states.Next()) {
      const auto id = static_cast<std::size_t>(states.Value());
      if (states_.size() <= id) states_.resize(id + 1);
      ForEachArc(states.Value(), [&](const fst::StdArc& arc) {
        if (arc.ilabel != failure_label_) return;
        if (states_[id].suffix != fst::kNoStateId) Fail("has two failure arcs at state ", id);
        states_[id].suffix = arc.nextstate;
        states_[id].backoff = -arc.weight.Value();
      });
    }
    for (std::size_t id = 0; id < states_.size(); ++id) {
      auto at = static_cast<std::size_t>(id);
      while (states_[at].suffix != fst::kNoStateId) {
        at = static_cast<std::size_t>(states_[at].suffix);
        if (++states_[id].depth >= kMaxOrder) {
          Fail("has ", kMaxOrder, " failure arcs or more in a row from state ", id,
               "; this library has histories of up to ", kMaxOrder - 1, " tokens");
        }
      }
      max_depth_ = std::max(max_depth_, states_[id].depth);
    }
  }

  // Histories by increasing length: an arc to a longer history is that history's last symbol.
  void NameStates() {
    std::vector<std::vector<std::size_t>> of_depth(static_cast<std::size_t>(max_depth_) + 1);
    for (std::size_t id = 0; id < states_.size(); ++id) {
      of_depth[static_cast<std::size_t>(states_[id].depth)].push_back(id);
    }
    if (of_depth[0].size() != 1) {
      Fail("has ", of_depth[0].size(), " states without a failure arc (label ", failure_label_,
           "); expected one, the empty history");
    }
    states_[of_depth[0][0]].named = true;
    for (const std::vector<std::size_t>& ids : of_depth) {
      if (&ids == &of_depth[std::min<std::size_t>(1, of_depth.size() - 1)]) NameStart();
      for (const std::size_t id : ids) NameSuccessors(id);
    }
    if (!states_[static_cast<std::size_t>(fst_.Start())].named) {
      Fail("starts after a context; write it with an empty context");
    }
  }

  void NameStart() {
    State& start = states_[static_cast<std::size_t>(fst_.Start())];
    if (start.named || start.depth != 1) return;
    start.named = true;
    start.history = {vocabulary_.bos};
  }

  void NameSuccessors(std::size_t id) {
    if (!states_[id].named) return;
    ForEachArc(static_cast<fst::StdArc::StateId>(id), [&](const fst::StdArc& arc) {
      State& next = states_[static_cast<std::size_t>(arc.nextstate)];
      if (arc.ilabel == failure_label_ || next.named || next.depth != states_[id].depth + 1) return;
      next.named = true;
      next.history = states_[id].history;
      next.history.push_back(SymbolOf(arc.ilabel));
    });
  }

  Symbol SymbolOf(Label label) const {
    if (label < 1 || ToSymbol(label) >= vocabulary_.num_symbols()) {
      Fail("has label ", label, "; expected 1..", vocabulary_.num_symbols(),
           " (token id + 1) or the failure label ", failure_label_, "; is vocab_size right?");
    }
    return ToSymbol(label);
  }

  void MakeLists() {
    lists_.resize(static_cast<std::size_t>(max_depth_) + 1);
    for (std::size_t m = 0; m < lists_.size(); ++m) lists_[m].length = static_cast<int>(m) + 1;
    const bool knows_end = KnowsEnd();
    for (std::size_t id = 0; id < states_.size(); ++id) {
      if (!states_[id].named) continue;
      ForEachArc(static_cast<fst::StdArc::StateId>(id), [&](const fst::StdArc& arc) {
        if (arc.ilabel == failure_label_) return;
        const State& next = states_[static_cast<std::size_t>(arc.nextstate)];
        const bool is_history = next.named && next.depth == states_[id].depth + 1;
        Add(states_[id], SymbolOf(arc.ilabel), arc.weight.Value(), is_history ? next.backoff : 0.0f,
            id);
      });
      if (knows_end && HasOwnEnd(id)) {
        Add(states_[id], vocabulary_.eos, FinalCost(id), 0.0f, id);
      }
    }
    FillUnigrams();
    while (lists_.size() > 1 && lists_.back().size() == 0) lists_.pop_back();
  }

  double FinalCost(std::size_t id) const {
    return fst_.Final(static_cast<fst::StdArc::StateId>(id)).Value();
  }

  bool KnowsEnd() const {
    for (std::size_t id = 0; id < states_.size(); ++id) {
      if (FinalCost(id) != 0.0) return true;
    }
    return false;
  }

  bool HasOwnEnd(std::size_t id) const {
    const double cost = FinalCost(id);
    if (std::isinf(cost)) return false;
    if (states_[id].depth == 0) return true;
    const double backed_off =
        FinalCost(static_cast<std::size_t>(states_[id].suffix)) - states_[id].backoff;
    return !(std::abs(cost - backed_off) <= kSameCost);
  }

  void Add(const State& state, Symbol word, double cost, float backoff, std::size_t id) {
    if (!(cost >= -kSameCost)) {
      Fail("has cost ", cost, " at state ", id, "; expected costs of 0 or above (-ln P)");
    }
    NgramList& list = lists_[state.history.size()];
    list.symbols.insert(list.symbols.end(), state.history.begin(), state.history.end());
    list.symbols.push_back(word);
    list.log_prob.push_back(std::min(0.0f, static_cast<float>(std::max(-cost, -1e30))));
    list.backoff.push_back(backoff);
    list.source.push_back(id);
  }

  // Level 0 has every symbol; <s> has its backoff from its own state.
  void FillUnigrams() {
    NgramList& list = lists_[0];
    std::vector<bool> listed(vocabulary_.num_symbols(), false);
    for (const Symbol symbol : list.symbols) listed[symbol] = true;
    const State& start = states_[static_cast<std::size_t>(fst_.Start())];
    for (Symbol symbol = 0; symbol < listed.size(); ++symbol) {
      if (listed[symbol]) continue;
      const bool boundary = symbol == vocabulary_.bos || symbol == vocabulary_.eos;
      list.symbols.push_back(symbol);
      list.log_prob.push_back(boundary ? kNeverLogProb : -kUnseenCost);
      const bool is_start = start.depth == 1 && start.history == History{symbol};
      list.backoff.push_back(is_start ? start.backoff : 0.0f);
      list.source.push_back(0);
    }
  }

  const std::string path_;
  const Vocabulary vocabulary_;
  StdFst fst_;
  Label failure_label_ = 0;
  std::vector<State> states_;
  int max_depth_ = 0;
  std::vector<NgramList> lists_;
};

}  // namespace

std::shared_ptr<const BackoffLm> ReadLmFst(const std::string& path,
                                           const FstImportOptions& options) {
  return FstReader(path, options).Read();
}

}  // namespace lattice_bpd
