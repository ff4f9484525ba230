#include <cstring>
#include <string>
#include <vector>

#include "lattice_bpd/base/atomic_file.h"
#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/lm/lm_file.h"

namespace lattice_bpd {
namespace {

std::uint64_t Align(std::uint64_t offset) {
  return (offset + kSectionAlignment - 1) & ~(kSectionAlignment - 1);
}

struct Section {
  SectionEntry entry;
  const void* data;
};

template <typename T>
void AddSection(SectionKind kind, int level, const Span<T>& values, std::vector<Section>* out) {
  if (values.empty()) return;
  const std::uint64_t size = values.size() * sizeof(T);
  out->push_back({{kind, static_cast<std::uint32_t>(level), 0, size, Checksum(values.data(), size)},
                  values.data()});
}

std::vector<Section> SectionsOf(const BackoffLm& lm, const std::vector<LevelForm>& forms) {
  std::vector<Section> sections;
  AddSection(SectionKind::kLevelForms, 0, Span<LevelForm>(forms), &sections);
  if (lm.vocabulary().unlisted != nullptr) {
    const Span<std::uint8_t> unlisted(*lm.vocabulary().unlisted);
    AddSection(SectionKind::kUnlisted, 0, unlisted, &sections);
  }
  if (lm.vocabulary().words != nullptr) {
    const std::string& lines = lm.vocabulary().words->lines();
    AddSection(SectionKind::kWords, 0, Span<char>(lines.data(), lines.size()), &sections);
  }
  for (int m = 0; m < lm.order(); ++m) {
    const PackedLevel& level = lm.levels()[m];
    AddSection(SectionKind::kKeys, m, level.keys, &sections);
    AddSection(SectionKind::kPayload, m, level.payload, &sections);
    AddSection(SectionKind::kLogProbValues, m, level.log_prob_values, &sections);
    AddSection(SectionKind::kBackoffValues, m, level.backoff_values, &sections);
    AddSection(SectionKind::kChildBases, m, level.child_bases, &sections);
    AddSection(SectionKind::kWideChildren, m, level.wide_children, &sections);
    AddSection(SectionKind::kSamples, m, level.samples, &sections);
  }
  return sections;
}

FileHeader HeaderOf(const BackoffLm& lm, std::uint64_t file_size,
                    const std::vector<SectionEntry>& table) {
  const Vocabulary& vocabulary = lm.vocabulary();
  FileHeader header = {};
  std::memcpy(header.magic, kLmMagic, sizeof kLmMagic);
  header.version = kLmFormatVersion;
  header.byte_order = kByteOrder;
  header.order = static_cast<std::uint32_t>(lm.order());
  header.vocab_size = vocabulary.vocab_size;
  header.bos = vocabulary.bos;
  header.eos = vocabulary.eos;
  header.unk = vocabulary.unk;
  header.num_sections = static_cast<std::uint32_t>(table.size());
  header.file_size = file_size;
  header.checksum = HeaderChecksum(header, table);
  return header;
}

}  // namespace

std::uint64_t HeaderChecksum(FileHeader header, const std::vector<SectionEntry>& table) {
  header.checksum = 0;
  const std::uint64_t parts[2] = {Checksum(&header, sizeof header),
                                  Checksum(table.data(), table.size() * sizeof(SectionEntry))};
  return Checksum(parts, sizeof parts);
}

void SaveLm(const BackoffLm& lm, const std::string& path) {
  std::vector<LevelForm> forms;
  for (const PackedLevel& level : lm.levels()) forms.push_back(level.form);
  std::vector<Section> sections = SectionsOf(lm, forms);
  std::uint64_t offset = sizeof(FileHeader) + sections.size() * sizeof(SectionEntry);
  std::vector<SectionEntry> table;
  for (Section& section : sections) {
    section.entry.offset = Align(offset);
    offset = section.entry.offset + section.entry.size;
    table.push_back(section.entry);
  }
  const FileHeader header = HeaderOf(lm, offset, table);

  AtomicFile file(path);
  file.Write(&header, sizeof header);
  file.Write(table.data(), table.size() * sizeof(SectionEntry));
  std::uint64_t written = sizeof header + table.size() * sizeof(SectionEntry);
  for (const Section& section : sections) {
    static constexpr char kZeros[kSectionAlignment] = {};
    file.Write(kZeros, section.entry.offset - written);
    file.Write(section.data, section.entry.size);
    written = section.entry.offset + section.entry.size;
  }
  file.Commit();
}

}  // namespace lattice_bpd
