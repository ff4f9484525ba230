// Acceptors: the first byte chooses options and whether an LM scores them, the rest is the FST.
#include <memory>
#include <string>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/draft/fst_drafts.h"
#include "lm_examples.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lattice_bpd;
  if (size == 0) return -1;
  UseOpenFst();
  static const std::shared_ptr<const BackoffLm> example = ExampleLm();
  const BackoffLm* lm = (data[0] & 1) != 0 ? example.get() : nullptr;
  DraftOptions options;
  options.num_drafts = 1 + (data[0] >> 1) % 8;
  options.alpha = (data[0] & 0x40) != 0 ? 1.0 : -0.5;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    FindFstDrafts(bytes, lm, example->StateOfContext({}, true), options);
  } catch (const ValueError&) {
  }
  return 0;
}
