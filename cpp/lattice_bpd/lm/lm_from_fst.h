// From an FST with backoff arcs to the LM: the inverse of LmToFstBytes, and OpenGrm NGram's models.
#ifndef LATTICE_BPD_LM_LM_FROM_FST_H_
#define LATTICE_BPD_LM_LM_FROM_FST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

struct FstImportOptions {
  std::uint64_t vocab_size = 0;
  SpecialIds special_ids;
  // The label of failure arcs. Unset: 0 (epsilon, as OpenGrm NGram writes them) where the FST has
  // such arcs, else the label that LmToFstBytes gives them (lm_fst.h).
  std::optional<Label> failure_label;
};

// Reads an OpenFst file of type vector or const over standard arcs: labels are symbol + 1, weights
// costs, a state is a history and its failure arc leads to the history's suffix. The state without
// failure arc is the empty history; a start state that no arc leads to from there is <s>.
//
// Final costs are -ln P(</s> | history), and become an n-gram where they are not what backing off
// gives (within 1e-5); where every final cost is 0 the FST says nothing about </s>. States that
// cannot be told from their arcs (unreachable ones) are left out.
//
// Throws IoError, ValueError (options), FormatError for what is no such FST.
std::shared_ptr<const BackoffLm> ReadLmFst(const std::string& path,
                                           const FstImportOptions& options);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_LM_FROM_FST_H_
