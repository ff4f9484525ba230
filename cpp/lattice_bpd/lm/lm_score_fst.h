// The FST of AcceptorCache, for code that composes with it.
#ifndef LATTICE_BPD_LM_LM_SCORE_FST_H_
#define LATTICE_BPD_LM_LM_SCORE_FST_H_

#include <fst/const-fst.h>

#include "lattice_bpd/base/openfst.h"

namespace lattice_bpd {

struct ScoreFst {
  explicit ScoreFst(const fst::VectorFst<ScoreArc>& built) : fst(built) {}
  fst::ConstFst<ScoreArc> fst;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_LM_SCORE_FST_H_
