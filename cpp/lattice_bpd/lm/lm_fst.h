// The LM as an FST acceptor with failure arcs.
//
// State 0 is the empty history, then come the histories of length 1, 2, .. in trie order. A state
// has an arc for each n-gram that extends it (label of the symbol, cost -scale * ln P) and one
// failure arc (FailureLabel) to its suffix, costing -scale * ln backoff: it may be followed only
// where no other arc matches, so it needs a phi matcher, and reading it as epsilon is wrong.
// Only token ids have arcs; those that an ARPA file lacks have the arcs of <unk>, in the FST that
// is written. In that of a search <unk> itself has them, and what is composed with it says <unk>.
// Every state is final: at cost 0, or at that of </s>.
#ifndef LATTICE_BPD_LM_LM_FST_H_
#define LATTICE_BPD_LM_LM_FST_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

struct ScoreFst;  // a ConstFst over ScoreArc; lm_score_fst.h, for those that include OpenFst

// The label of failure arcs: after all symbols, so that arcs stay sorted.
inline Label FailureLabel(const BackoffLm& lm) { return ToLabel(lm.vocabulary().num_symbols()); }

// The FST state of a history.
std::int32_t FstState(const BackoffLm& lm, const LmState& state);

// The LMs as FSTs with grid scores, for the scales used last. Building one takes time and memory
// in proportion to the number of n-grams, so it is done once for each scale. Thread safe.
class AcceptorCache {
 public:
  std::shared_ptr<const ScoreFst> Get(const BackoffLm& lm, double scale);

 private:
  static constexpr std::size_t kCapacity = 4;
  std::mutex mutex_;
  std::vector<std::pair<double, std::shared_ptr<const ScoreFst>>> entries_;  // latest last
};

struct LmExportOptions {
  bool expand_failures = false;  // every arc written out: V arcs a state, for plain composition
  bool end_of_sentence = false;  // final cost -ln P(</s> | history), else 0
  bool const_fst = false;        // ConstFst: smaller, mapped when read; else VectorFst
};

// The LM as bytes of an OpenFst VectorFst<StdArc> (or ConstFst) whose start is the state of a
// context. Throws ValueError where expanding would need more than 2^28 arcs.
std::string LmToFstBytes(const BackoffLm& lm, const LmState& start, const LmExportOptions& options);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_LM_FST_H_
