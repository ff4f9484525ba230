// The p best paths through a sausage lattice under head scores and an LM.
//
//   score(w) = sum over slots of  z[w_j] + t[w_{j-1}, w_j] + alpha * ln P(w_j | context, w_1 ..
//   w_{j-1})
//
// with transitions t where the lattice has them. Local normalization makes every slot's row a
// distribution over its candidates, as drafters with transitions are trained:
//
//   score(w) = sum over slots of ln q(w_j | context, w_1 .. w_{j-1})
//   q(w | ..) = exp(s(w)) / sum over candidates v of exp(s(v))   s: the three terms above
//
// The LM starts in the state of the context, pays backoff weights with failure semantics, and
// charges no end of sentence. Parts of a score live on the score grid (base/score_grid.h), so that
// every engine returns the same list: by decreasing score, equal scores by the smaller token id at
// the first position where two paths differ.
#ifndef LATTICE_BPD_DRAFT_FIND_DRAFTS_H_
#define LATTICE_BPD_DRAFT_FIND_DRAFTS_H_

#include <string>
#include <vector>

#include "lattice_bpd/lattice/sausage.h"
#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

constexpr int kMaxDrafts = 1 << 20;
constexpr double kMaxAlpha = 1e6;

enum class Engine { kAuto, kFused, kOpenFst };

// Whether scores of whole paths are compared, or distributions of one slot after another.
enum class Normalization { kGlobal, kLocal };

struct DraftOptions {
  int num_drafts = 16;
  double alpha = 1.0;
  Engine engine = Engine::kAuto;
  Normalization normalization = Normalization::kGlobal;
};

// Draft i is token_ids[i * num_slots .. (i + 1) * num_slots - 1].
struct DraftList {
  std::size_t num_slots = 0;
  std::vector<TokenId> token_ids;
  std::vector<double> scores;

  std::size_t size() const { return scores.size(); }
};

// "auto", "fused", "openfst". Throws ValueError that lists the engines for any other name.
Engine ParseEngine(const std::string& name);

// "global", "local". Likewise.
Normalization ParseNormalization(const std::string& name);

// Throw ValueError where num_drafts, alpha or the largest token id of a lattice is out of range.
void CheckNumDrafts(int num_drafts);
void CheckAlpha(double alpha);
void CheckVocabulary(TokenId largest, const BackoffLm& lm);

// min(num_drafts, number of paths) drafts; none of a lattice without slots. `lm` may be null: head
// scores alone. `start` is the state of the context in `lm`. Throws ValueError for options out of
// range, candidates outside the LM's vocabulary, or local normalization with the openfst engine.
DraftList FindDrafts(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                     const DraftOptions& options);

// The same; *out is overwritten and its memory reused.
void FindDrafts(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                const DraftOptions& options, DraftList* out);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DRAFT_FIND_DRAFTS_H_
