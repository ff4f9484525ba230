// An LM from an FST: the first byte chooses the vocabulary and the failure label, the rest is the
// file.
#include <string>

#include "fuzz_input.h"
#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/lm/lm_from_fst.h"
#include "use_lm.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lattice_bpd;
  if (size == 0) return -1;
  UseOpenFst();
  const MemoryFile file({reinterpret_cast<const char*>(data) + 1, size - 1});
  FstImportOptions options;
  options.vocab_size = 1 + data[0] % 16;
  if ((data[0] & 0x80) != 0) options.failure_label = data[0] & 0x1f;
  try {
    UseLm(*ReadLmFst(file.path(), options));
  } catch (const FormatError&) {
  } catch (const ValueError&) {
  }
  return 0;
}
