// LM files: opened with all checksums, then with those of header and table made right again and
// the sections trusted, as they are in large files.
#include <cstring>
#include <string>
#include <vector>

#include "fuzz_input.h"
#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/lm/lm_file.h"
#include "use_lm.h"

namespace lattice_bpd {

namespace {

void Open(const std::string& bytes, bool verify) {
  const MemoryFile file(bytes);
  try {
    UseLm(*LoadLm(file.path(), verify));
  } catch (const FormatError&) {
  }
}

std::string Repaired(std::string bytes) {
  FileHeader header;
  if (bytes.size() < sizeof header) return bytes;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::memcpy(header.magic, kLmMagic, sizeof kLmMagic);
  header.version = kLmFormatVersion;
  header.byte_order = kByteOrder;
  header.file_size = bytes.size();
  const std::size_t max_sections = (bytes.size() - sizeof header) / sizeof(SectionEntry);
  std::vector<SectionEntry> table(std::min<std::size_t>(header.num_sections, max_sections));
  if (!table.empty()) {
    std::memcpy(table.data(), bytes.data() + sizeof header, table.size() * sizeof(SectionEntry));
  }
  header.checksum = HeaderChecksum(header, table);
  Overwrite(&bytes, 0, header);
  return bytes;
}

}  // namespace
}  // namespace lattice_bpd

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lattice_bpd::UseOpenFst();
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  lattice_bpd::Open(bytes, true);
  lattice_bpd::Open(lattice_bpd::Repaired(bytes), false);
  return 0;
}
