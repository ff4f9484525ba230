#include "lattice_bpd/train/estimate_options.h"

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {

Smoothing ParseSmoothing(const std::string& name) {
  if (name == "katz") return Smoothing::kKatz;
  if (name == "kneser_ney") return Smoothing::kKneserNey;
  if (name == "modified_kneser_ney") return Smoothing::kModifiedKneserNey;
  if (name == "witten_bell") return Smoothing::kWittenBell;
  if (name == "absolute") return Smoothing::kAbsolute;
  throw ValueError(StrCat("smoothing is \"", name,
                          "\"; expected katz, kneser_ney, modified_kneser_ney, witten_bell or "
                          "absolute"));
}

Unseen ParseUnseen(const std::string& name) {
  if (name == "cost") return Unseen::kCost;
  if (name == "uniform") return Unseen::kUniform;
  throw ValueError(StrCat("unseen is \"", name, "\"; expected cost or uniform"));
}

}  // namespace lattice_bpd
