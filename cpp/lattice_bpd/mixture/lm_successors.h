// The most probable next tokens of an LM's histories, without a scan of the vocabulary.
#ifndef LATTICE_BPD_MIXTURE_LM_SUCCESSORS_H_
#define LATTICE_BPD_MIXTURE_LM_SUCCESSORS_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

constexpr int kMaxSuccessors = 16;

// A token after a history. The probabilities of a list need not sum to 1.
struct Successor {
  Symbol token;
  double prob;
};

// The successors of the longest matching histories, longest first, at most kMaxSuccessors, with
// their backoff probabilities. Histories with many successors are listed in advance: one pass over
// the LM, about 240 bytes for each history with more than 32.
class LmSuccessors {
 public:
  explicit LmSuccessors(std::shared_ptr<const BackoffLm> lm);

  const BackoffLm& lm() const { return *lm_; }

  // Fills out[0 .. returned - 1], tokens below `vocab_size` only. `length` becomes that of the
  // longest history with successors, `top` the greatest probability.
  int Find(const LmState& state, Symbol vocab_size, Successor* out, std::uint32_t* length,
           double* top) const;

 private:
  struct Listed {
    Symbol token;
    float log_prob;
  };

  // The most probable children begin .. end - 1 of level `level`, best first.
  int Select(int level, std::uint32_t begin, std::uint32_t end, Listed* best) const;

  std::shared_ptr<const BackoffLm> lm_;
  std::vector<std::unordered_map<std::uint32_t, std::uint32_t>> lists_;  // of each level
  std::vector<Listed> listed_;  // kMaxSuccessors for each list
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_LM_SUCCESSORS_H_
