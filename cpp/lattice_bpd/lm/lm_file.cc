#include "lattice_bpd/lm/lm_file.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/mapped_file.h"

namespace lattice_bpd {
namespace {

// Checks one mapped file and cuts it into levels.
class Reader {
 public:
  explicit Reader(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}

  std::vector<SectionEntry> ReadSections() {
    ReadHeader();
    ReadTable();
    return table_;
  }

  std::shared_ptr<const BackoffLm> Read(std::optional<bool> verify) {
    ReadSections();
    if (verify.value_or(file_->size() <= kVerifyLimit)) {
      VerifySections();
      VerifyGaps();
    }
    forms_ = Find<LevelForm>(SectionKind::kLevelForms, 0, header_.order);
    ReadUnlisted();
    ReadWords();
    std::vector<PackedLevel> levels;
    storage_.resize(header_.order);
    for (std::uint32_t m = 0; m < header_.order; ++m) levels.push_back(ReadLevel(m));
    return std::make_shared<BackoffLm>(vocabulary_, std::move(levels), std::move(storage_), file_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    throw FormatError(StrCat(file_->path(), ": ", parts...));
  }

  void ReadHeader() {
    if (file_->size() < sizeof header_) {
      Fail("the file has ", file_->size(),
           " bytes, fewer than an LM's header; it is empty or cut, "
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
    const std::uint64_t max_sections = (file_->size() - sizeof header_) / sizeof(SectionEntry);
    if (header_.num_sections > max_sections) {
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
      if (entry.offset % kSectionAlignment != 0 || entry.offset > file_->size() ||
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

  // What no checksum covers is 0.
  void VerifyGaps() const {
    std::uint64_t at = sizeof header_ + table_.size() * sizeof(SectionEntry);
    const auto expect_zeros = [&](std::uint64_t end) {
      for (; at < end; ++at) {
        if (file_->data()[at] != 0) {
          Fail("byte ", at, " (between sections) was altered; copy or train the file again");
        }
      }
    };
    for (const SectionEntry& entry : table_) {
      expect_zeros(entry.offset);
      at = std::max(at, entry.offset + entry.size);
    }
    expect_zeros(file_->size());
  }

  const SectionEntry* Entry(SectionKind kind, std::uint32_t level) const {
    for (const SectionEntry& entry : table_) {
      if (entry.kind == kind && entry.level == level) return &entry;
    }
    return nullptr;
  }

  // The section's `count` elements; a section of none may be missing.
  template <typename T>
  Span<T> Find(SectionKind kind, std::uint32_t level, std::uint64_t count) const {
    const SectionEntry* entry = Entry(kind, level);
    if (entry == nullptr && count == 0) return {};
    if (entry == nullptr) {
      Fail("section ", static_cast<std::uint32_t>(kind), " of order ", level + 1, " is missing");
    }
    if (entry->size / sizeof(T) != count || entry->size % sizeof(T) != 0) {
      Fail("section ", static_cast<std::uint32_t>(kind), " of order ", level + 1, " has ",
           entry->size, " bytes; expected ", count, " elements of ", sizeof(T));
    }
    return {reinterpret_cast<const T*>(file_->data() + entry->offset), count};
  }

  void ReadUnlisted() {
    if (Entry(SectionKind::kUnlisted, 0) == nullptr) return;
    const auto unlisted =
        Find<std::uint8_t>(SectionKind::kUnlisted, 0, BytesOfBits(vocabulary_.vocab_size));
    vocabulary_.unlisted =
        std::make_shared<const std::vector<std::uint8_t>>(unlisted.begin(), unlisted.end());
  }

  void ReadWords() {
    const SectionEntry* entry = Entry(SectionKind::kWords, 0);
    if (entry == nullptr) return;
    const Span<char> lines = Find<char>(SectionKind::kWords, 0, entry->size);
    try {
      vocabulary_.words = std::make_shared<const WordList>(std::string(lines.begin(), lines.end()));
    } catch (const ValueError& error) {
      Fail(error.what());
    }
    if (vocabulary_.words->size() == vocabulary_.vocab_size) return;
    Fail(vocabulary_.words->size(), " words; expected one for each of the ", vocabulary_.vocab_size,
         " token ids");
  }

  // The values of codes of so many bytes.
  Span<float> FindValues(SectionKind kind, std::uint32_t level, int code_bytes) const {
    if (code_bytes == 0 || code_bytes == 4) return {};
    const SectionEntry* entry = Entry(kind, level);
    const std::uint64_t count = entry == nullptr ? 0 : entry->size / sizeof(float);
    if (count == 0) Fail("the table of values of order ", level + 1, " is missing");
    return Find<float>(kind, level, count);
  }

  // Indices into it are checked at each read.
  Span<std::uint32_t> FindWide(std::uint32_t level) const {
    const SectionEntry* entry = Entry(SectionKind::kWideChildren, level);
    const std::uint64_t count = entry == nullptr ? 0 : entry->size / sizeof(std::uint32_t);
    return Find<std::uint32_t>(SectionKind::kWideChildren, level, count);
  }

  void CheckForm(const LevelForm& form, std::uint32_t m) const {
    const bool highest = m + 1 == header_.order;
    const auto one_of = [](int value, int a, int b, int c) {
      return value == a || value == b || value == c;
    };
    const bool good = (m == 0 ? form.key_bytes == 0 : one_of(form.key_bytes, 2, 4, 4)) &&
                      one_of(form.log_prob_bytes, 1, 2, 4) &&
                      (highest ? form.backoff_bytes == 0 : one_of(form.backoff_bytes, 1, 2, 4)) &&
                      (highest ? form.child_bytes == 0 : one_of(form.child_bytes, 1, 2, 4));
    if (!good) Fail("the form of order ", m + 1, " is none that this release knows");
    if (form.size >= kNoNode) Fail("order ", m + 1, " has too many n-grams: ", form.size);
    if (m == 0 && form.size != vocabulary_.num_symbols()) {
      Fail(form.size, " unigrams; expected one for each of the ", vocabulary_.num_symbols(),
           " symbols");
    }
  }

  PackedLevel ReadLevel(std::uint32_t m) {
    const LevelForm& form = forms_[m];
    CheckForm(form, m);
    PackedLevel level;
    level.form = form;
    level.keys = Find<std::uint8_t>(SectionKind::kKeys, m, form.size * form.key_bytes);
    level.payload =
        Find<std::uint8_t>(SectionKind::kPayload, m, (form.size + 1) * form.record_bytes());
    level.log_prob_values = FindValues(SectionKind::kLogProbValues, m, form.log_prob_bytes);
    level.backoff_values = FindValues(SectionKind::kBackoffValues, m, form.backoff_bytes);
    const bool has_bases = form.child_bytes == 1 || form.child_bytes == 2;
    level.child_bases = Find<std::uint32_t>(SectionKind::kChildBases, m,
                                            has_bases ? form.size / kChildBaseStride + 1 : 0);
    if (form.child_bytes == 1) level.wide_children = FindWide(m);
    if (Entry(SectionKind::kSamples, m) == nullptr) {
      storage_[m].samples = SampleKeys(form, level.keys);
      level.samples = storage_[m].samples;
    } else {
      const std::uint64_t samples = (form.size + kSampleStride - 1) / kSampleStride;
      level.samples = Find<std::uint8_t>(SectionKind::kSamples, m, samples * form.key_bytes);
    }
    level.num_children = m + 1 < header_.order ? static_cast<std::uint32_t>(forms_[m + 1].size) : 0;
    return level;
  }

  std::shared_ptr<const MappedFile> file_;
  FileHeader header_;
  std::vector<SectionEntry> table_;
  Vocabulary vocabulary_;
  Span<LevelForm> forms_;
  std::vector<LevelStorage> storage_;  // samples of a file that has none
};

}  // namespace

std::shared_ptr<const BackoffLm> LoadLm(const std::string& path, std::optional<bool> verify) {
  return Reader(std::make_shared<const MappedFile>(path)).Read(verify);
}

std::vector<SectionEntry> ListSections(const std::string& path) {
  return Reader(std::make_shared<const MappedFile>(path)).ReadSections();
}

}  // namespace lattice_bpd
