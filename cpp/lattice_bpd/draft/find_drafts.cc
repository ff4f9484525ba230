#include "lattice_bpd/draft/find_drafts.h"

#include <cmath>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/draft/openfst_engine.h"

namespace lattice_bpd {

void CheckNumDrafts(int num_drafts) {
  if (num_drafts < 1 || num_drafts > kMaxDrafts) {
    throw ValueError(StrCat("num_drafts is ", num_drafts, "; expected 1..", kMaxDrafts));
  }
}

void CheckAlpha(double alpha) {
  if (!(std::abs(alpha) <= kMaxAlpha)) {
    throw ValueError(
        StrCat("alpha is ", alpha, "; expected a number in ", -kMaxAlpha, "..", kMaxAlpha));
  }
}

void CheckVocabulary(TokenId largest, const BackoffLm& lm) {
  const std::int64_t vocab_size = lm.vocabulary().vocab_size;
  if (largest < 2 * vocab_size) return;
  throw ValueError(StrCat("the lattice has token id ", largest, ", but the LM's vocabulary has ",
                          vocab_size,
                          " tokens; use the LM that was trained with this model's tokenizer"));
}

Engine ParseEngine(const std::string& name) {
  if (name == "auto") return Engine::kAuto;
  if (name == "fused") return Engine::kFused;
  if (name == "openfst") return Engine::kOpenFst;
  throw ValueError(StrCat("engine is \"", name, "\"; expected \"auto\", \"fused\" or \"openfst\""));
}

Normalization ParseNormalization(const std::string& name) {
  if (name == "global") return Normalization::kGlobal;
  if (name == "local") return Normalization::kLocal;
  throw ValueError(StrCat("normalization is \"", name, "\"; expected \"global\" or \"local\""));
}

DraftList FindDrafts(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                     const DraftOptions& options) {
  DraftList drafts;
  FindDrafts(sausage, lm, start, options, &drafts);
  return drafts;
}

void FindDrafts(const Sausage& sausage, const BackoffLm* lm, const LmState& start,
                const DraftOptions& options, DraftList* out) {
  CheckNumDrafts(options.num_drafts);
  CheckAlpha(options.alpha);
  if (options.normalization == Normalization::kLocal && options.engine == Engine::kOpenFst) {
    throw ValueError("engine \"openfst\" cannot normalize locally; use \"fused\" or \"auto\"");
  }
  out->num_slots = sausage.num_slots();
  if (sausage.num_slots() == 0) {
    out->token_ids.clear();
    out->scores.clear();
    return;
  }
  if (lm != nullptr) CheckVocabulary(sausage.max_token_id(), *lm);
  if (options.engine == Engine::kOpenFst) {
    FindDraftsOpenFst(sausage, lm, start, options, out);
  } else {
    FindDraftsFused(sausage, lm, start, options, out);
  }
}

}  // namespace lattice_bpd
