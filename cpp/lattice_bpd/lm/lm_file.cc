#include "lattice_bpd/lm/lm_file.h"

#include <cstring>
#include <utility>
#include <vector>

#include "lattice_bpd/base/atomic_file.h"
#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/mapped_file.h"

namespace lattice_bpd {
namespace {

constexpr std::uint32_t kByteOrder = 0x01020304u;
constexpr std::uint64_t kAlignment = 64;

std::uint64_t Align(std::uint64_t offset) { return (offset + kAlignment - 1) & ~(kAlignment - 1); }

std::uint64_t HeaderChecksum(FileHeader header, const std::vector<SectionEntry>& table) {
  header.checksum = 0;
  const std::uint64_t parts[2] = {Checksum(&header, sizeof header),
                                  Checksum(table.data(), table.size() * sizeof(SectionEntry))};
  return Checksum(parts, sizeof parts);
}

struct Section {
  SectionEntry entry;
  const void* data;
};

template <typename T>
void AddSection(SectionKind kind, int level, const Span<T>& values, std::vector<Section>* out) {
  if (values.empty()) return;
  const std::uint64_t size = values.size() * sizeof(T);
  out->push_back({{kind, static_cast<std::uint32_t>(level), 0, size,
                   Checksum(values.data(), size)},
                  values.data()});
}

std::vector<Section> SectionsOf(const BackoffLm& lm) {
  std::vector<Section> sections;
  for (int m = 0; m < lm.order(); ++m) {
    const LevelView& level = lm.levels()[m];
    AddSection(SectionKind::kWord, m, level.word, &sections);
    AddSection(SectionKind::kLogProb, m, level.log_prob, &sections);
    AddSection(SectionKind::kBackoff, m, level.backoff, &sections);
    AddSection(SectionKind::kChildBegin, m, level.child_begin, &sections);
    AddSection(SectionKind::kSuffix, m, level.suffix, &sections);
  }
  return sections;
}

// Checks one mapped file and cuts it into levels.
class Reader {
 public:
  explicit Reader(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}

  std::shared_ptr<const BackoffLm> Read(std::optional<bool> verify) {
    ReadHeader();
    ReadTable();
    if (verify.value_or(file_->size() <= kVerifyLimit)) VerifySections();
    std::vector<LevelView> levels;
    for (std::uint32_t m = 0; m < header_.order; ++m) levels.push_back(ReadLevel(m, levels));
    return std::make_shared<BackoffLm>(vocabulary_, std::move(levels), file_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    throw FormatError(StrCat(file_->path(), ": ", parts...));
  }

  void ReadHeader() {
    if (file_->size() < sizeof header_) {
      Fail("the file has ", file_->size(), " bytes, fewer than an LM's header; it is empty or cut, "
           "write it again");
    }
    std::memcpy(&header_, file_->data(), sizeof header_);
    if (std::memcmp(header_.magic, kLmMagic, sizeof kLmMagic) != 0) {
      const bool arpa = std::memchr(file_->data(), '\\', sizeof header_) != nullptr;
      Fail("not an LM file of lattice-bpd (wrong magic number at byte 0)",
           arpa ? "; it looks like ARPA text: read it with NGramLM.from_arpa"
                : "; expected a file written by NGramLM.save");
    }
    if (header_.byte_order != kByteOrder) {
      Fail("written on a machine of another byte order; train or convert it here");
    }
    if (header_.version != kLmFormatVersion) {
      Fail("format version ", header_.version, " at byte 8; this release reads version ",
           kLmFormatVersion, ": convert the file with the release that wrote it, through ARPA");
    }
    if (header_.file_size != file_->size()) {
      Fail("the file has ", file_->size(), " bytes; its header says ", header_.file_size,
           ": it was cut or appended to, copy or train it again");
    }
    if (header_.order < 1 || header_.order > kMaxOrder) {
      Fail("order ", header_.order, " at byte 16; expected 1..", kMaxOrder);
    }
  }

  void ReadTable() {
    const std::uint64_t room = (file_->size() - sizeof header_) / sizeof(SectionEntry);
    if (header_.num_sections > room) {
      Fail(header_.num_sections, " sections at byte 36 do not fit into the file");
    }
    table_.resize(header_.num_sections);
    if (!table_.empty()) {
      std::memcpy(table_.data(), file_->data() + sizeof header_,
                  table_.size() * sizeof(SectionEntry));
    }
    if (HeaderChecksum(header_, table_) != header_.checksum) {
      Fail("the header or the section table (bytes 0..",
           sizeof header_ + table_.size() * sizeof(SectionEntry) - 1,
           ") was altered: its checksum differs; copy or train the file again");
    }
    for (const SectionEntry& entry : table_) {
      if (entry.offset % kAlignment != 0 || entry.offset > file_->size() ||
          entry.size > file_->size() - entry.offset) {
        Fail("section ", static_cast<std::uint32_t>(entry.kind), " of order ", entry.level + 1,
             " lies outside the file: offset ", entry.offset, ", ", entry.size, " bytes");
      }
    }
    vocabulary_ = {header_.vocab_size, header_.bos, header_.eos, header_.unk};
    const std::uint64_t limit = std::uint64_t{header_.vocab_size} + 3;
    if (header_.vocab_size == 0 || header_.vocab_size > kMaxVocabSize || header_.bos >= limit ||
        header_.eos >= limit || header_.unk >= limit) {
      Fail("vocab_size ", header_.vocab_size, " or a special symbol at byte 20 is out of range");
    }
  }

  void VerifySections() const {
    for (const SectionEntry& entry : table_) {
      if (Checksum(file_->data() + entry.offset, entry.size) == entry.checksum) continue;
      Fail("bytes ", entry.offset, "..", entry.offset + entry.size - 1, " (section ",
           static_cast<std::uint32_t>(entry.kind), " of order ", entry.level + 1,
           ") were altered: their checksum differs; copy or train the file again");
    }
  }

  template <typename T>
  Span<T> Find(SectionKind kind, std::uint32_t level, std::uint64_t count) const {
    for (const SectionEntry& entry : table_) {
      if (entry.kind != kind || entry.level != level) continue;
      if (entry.size != count * sizeof(T)) {
        Fail("section ", static_cast<std::uint32_t>(kind), " of order ", level + 1, " has ",
             entry.size, " bytes; expected ", count * sizeof(T));
      }
      return {reinterpret_cast<const T*>(file_->data() + entry.offset), count};
    }
    if (count != 0) {
      Fail("section ", static_cast<std::uint32_t>(kind), " of order ", level + 1, " is missing");
    }
    return {};
  }

  // The number of n-grams of a level is what its log probabilities say.
  std::uint64_t CountOf(std::uint32_t level) const {
    for (const SectionEntry& entry : table_) {
      if (entry.kind == SectionKind::kLogProb && entry.level == level) {
        return entry.size / sizeof(float);
      }
    }
    return 0;
  }

  LevelView ReadLevel(std::uint32_t m, const std::vector<LevelView>& below) const {
    const bool highest = m + 1 == header_.order;
    const std::uint64_t count = CountOf(m);
    if (m == 0 && count != vocabulary_.num_symbols()) {
      Fail(count, " unigrams; expected one for each of the ", vocabulary_.num_symbols(),
           " symbols");
    }
    if (count >= BackoffLm::kNoNode) Fail("order ", m + 1, " has too many n-grams: ", count);
    LevelView level;
    level.log_prob = Find<float>(SectionKind::kLogProb, m, count);
    level.word = Find<Symbol>(SectionKind::kWord, m, m == 0 ? 0 : count);
    level.backoff = Find<float>(SectionKind::kBackoff, m, highest ? 0 : count);
    level.child_begin =
        Find<std::uint32_t>(SectionKind::kChildBegin, m, highest ? 0 : count + 1);
    level.suffix =
        Find<std::uint32_t>(SectionKind::kSuffix, m, m == 0 || highest ? 0 : count);
    if (m > 0 && below.back().child_begin[below.back().size()] != count) {
      Fail("order ", m + 1, " has ", count, " n-grams; order ", m, " points to ",
           below.back().child_begin[below.back().size()]);
    }
    return level;
  }

  std::shared_ptr<const MappedFile> file_;
  FileHeader header_;
  std::vector<SectionEntry> table_;
  Vocabulary vocabulary_;
};

}  // namespace

void SaveLm(const BackoffLm& lm, const std::string& path) {
  std::vector<Section> sections = SectionsOf(lm);
  std::uint64_t offset = sizeof(FileHeader) + sections.size() * sizeof(SectionEntry);
  std::vector<SectionEntry> table;
  for (Section& section : sections) {
    section.entry.offset = Align(offset);
    offset = section.entry.offset + section.entry.size;
    table.push_back(section.entry);
  }
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
  header.file_size = offset;
  header.checksum = HeaderChecksum(header, table);

  AtomicFile file(path);
  file.Write(&header, sizeof header);
  file.Write(table.data(), table.size() * sizeof(SectionEntry));
  std::uint64_t written = sizeof header + table.size() * sizeof(SectionEntry);
  for (const Section& section : sections) {
    static constexpr char kZeros[kAlignment] = {};
    file.Write(kZeros, section.entry.offset - written);
    file.Write(section.data, section.entry.size);
    written = section.entry.offset + section.entry.size;
  }
  file.Commit();
}

std::shared_ptr<const BackoffLm> LoadLm(const std::string& path, std::optional<bool> verify) {
  return Reader(std::make_shared<const MappedFile>(path)).Read(verify);
}

}  // namespace lattice_bpd
