// Scores that add up exactly, so that ties are ties.
//
// Every part of a path's score (a head score, alpha * ln P, alpha * ln backoff) is rounded to a
// multiple of 2^-24 and kept in a double. Sums of such numbers are exact, in any order, while
// they stay below 2^29 in magnitude: whatever way an engine adds a path up, it gets the same bits,
// and "the smaller token id wins a tie" has one meaning. The rounding moves a part by at most
// 3e-8; a float32 of magnitude 1 or more is not moved at all.
#ifndef LATTICE_BPD_BASE_SCORE_GRID_H_
#define LATTICE_BPD_BASE_SCORE_GRID_H_

#include <cmath>

namespace lattice_bpd {

inline double ToScoreGrid(double score) { return std::nearbyint(score * 0x1p24) * 0x1p-24; }

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_SCORE_GRID_H_
