// ARPA text: the first byte chooses the vocabulary, the rest is the file.
#include <string>

#include "fuzz_input.h"
#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/lm/arpa.h"
#include "use_lm.h"

namespace lattice_bpd {

namespace {

ArpaOptions OptionsFrom(std::uint8_t choice) {
  ArpaOptions options;
  if (choice % 4 == 0) options.words = {"the", "cat", "sat", "ran"};
  if (choice % 4 >= 1) options.vocab_size = 4 + choice / 4;  // unset, it may be two millions
  if (choice % 4 == 2) options.special_ids = {0, 1, 2};
  if (choice % 4 == 3) options.special_ids = {0, 0, std::nullopt};
  return options;
}

}  // namespace
}  // namespace lattice_bpd

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lattice_bpd;
  if (size == 0) return -1;
  UseOpenFst();
  const MemoryFile file({reinterpret_cast<const char*>(data) + 1, size - 1});
  try {
    ReadArpaWords(file.path());
  } catch (const FormatError&) {
  }
  try {
    UseLm(*ReadArpa(file.path(), OptionsFrom(data[0])));
  } catch (const FormatError&) {
  } catch (const ValueError&) {
  }
  return 0;
}
