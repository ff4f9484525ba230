// The memory-mapped LM file.
//
//   header   64 bytes: FileHeader
//   table    32 bytes for each section: SectionEntry
//   sections each starting at a multiple of 64 bytes, little-endian, no padding inside
//
// The header's checksum covers the header (with that field zero) and the table; each entry's
// checksum covers its section. Opening checks the magic, version, sizes, every offset and the
// header's checksum always, and the sections' checksums, with the zeros between sections, up to
// kVerifyLimit bytes or on request.
#ifndef LATTICE_BPD_LM_LM_FILE_H_
#define LATTICE_BPD_LM_LM_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

constexpr char kLmMagic[8] = {'L', 'B', 'P', 'D', '-', 'L', 'M', '\n'};
constexpr std::uint32_t kByteOrder = 0x01020304u;
constexpr std::uint64_t kSectionAlignment = 64;
constexpr std::uint32_t kLmFormatVersion = 3;

// Files up to this size have all checksums compared when they are opened (about 0.1 s).
constexpr std::uint64_t kVerifyLimit = std::uint64_t{1} << 28;

struct FileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t byte_order;  // 0x01020304 as the writer's machine stores it
  std::uint32_t order;
  std::uint32_t vocab_size;
  Symbol bos;
  Symbol eos;
  Symbol unk;
  std::uint32_t num_sections;
  std::uint64_t file_size;
  std::uint64_t checksum;
  std::uint64_t reserved;
};
static_assert(sizeof(FileHeader) == 64, "the header is 64 bytes on disk");

// What a section holds (packed_level.h); its level is 0 for unigrams. Level forms are in one
// section of level 0. Samples may be missing: they are computed on load then.
enum class SectionKind : std::uint32_t {
  kLevelForms = 1,
  kKeys = 2,
  kPayload = 3,
  kLogProbValues = 4,
  kBackoffValues = 5,
  kChildBases = 6,
  kSamples = 7,
  kWideChildren = 8,
  kUnlisted = 9,  // Vocabulary::unlisted, at level 0
  kWords = 10,    // Vocabulary::words, at level 0; older releases pass it over
};

struct SectionEntry {
  SectionKind kind;
  std::uint32_t level;
  std::uint64_t offset;
  std::uint64_t size;  // bytes
  std::uint64_t checksum;
};
static_assert(sizeof(SectionEntry) == 32, "a table entry is 32 bytes on disk");

// Of the header (its own checksum taken as 0) and the table.
std::uint64_t HeaderChecksum(FileHeader header, const std::vector<SectionEntry>& table);

// Writes to a temporary name beside `path` and renames. Throws IoError.
void SaveLm(const BackoffLm& lm, const std::string& path);

// verify: compare the sections' checksums; unset means "if the file has kVerifyLimit bytes or
// fewer". Throws IoError, and FormatError for a file that is not an LM, is cut or was altered.
std::shared_ptr<const BackoffLm> LoadLm(const std::string& path, std::optional<bool> verify);

// The section table of a file, whose header alone is checked. Throws like LoadLm.
std::vector<SectionEntry> ListSections(const std::string& path);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_LM_FILE_H_
