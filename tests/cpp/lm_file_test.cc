// The mapped LM file: altered bytes, tables that lie; ARPA text with any words.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/arpa.h"
#include "lattice_bpd/lm/lm_file.h"
#include "lattice_bpd/lm/lm_fst.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

using LmPointer = std::shared_ptr<const BackoffLm>;

// Queries an LM for every word after every history of up to `depth` symbols; the sum keeps the
// compiler from dropping the questions.
double QueryBelow(const BackoffLm& lm, const LmState& state, int depth) {
  double sum = 0.0;
  for (Symbol word = 0; word < lm.vocabulary().num_symbols(); ++word) {
    const LmStep step = lm.Query(state, word);
    sum += step.TotalLogProb();
    if (depth > 0) sum += QueryBelow(lm, step.next, depth - 1);
  }
  return sum;
}

double QueryEverything(const BackoffLm& lm) { return QueryBelow(lm, LmState{}, lm.order() - 1); }

// The error of loading these bytes; empty where it succeeds, and then any query works.
std::string MessageOf(const std::string& path, const std::string& bytes, bool verify) {
  WriteBytes(path, bytes);
  try {
    const LmPointer lm = LoadLm(path, verify);
    QueryEverything(*lm);
    LmToFstBytes(*lm, {}, {});
  } catch (const FormatError& error) {
    CHECK(std::string(error.what()).find(path) != std::string::npos);
    return error.what();
  }
  return "";
}

// The header's checksum made right again, as a damage that the sizes alone must reveal.
std::string WithHeaderChecksum(std::string bytes) {
  FileHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.checksum = 0;
  const std::size_t table_size = header.num_sections * sizeof(SectionEntry);
  const std::uint64_t parts[2] = {Checksum(&header, sizeof header),
                                  Checksum(bytes.data() + sizeof header, table_size)};
  header.checksum = Checksum(parts, sizeof parts);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

std::string SavedExample(TemporaryFolder* folder) {
  const std::string path = folder->File("example.lm");
  SaveLm(*ExampleLm(), path);
  return ReadBytes(path);
}

TEST_CASE("file: any altered byte is found when checksums are compared") {
  TemporaryFolder folder;
  const std::string bytes = SavedExample(&folder);
  const std::string path = folder.File("altered.lm");
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ (1 << (at % 8)));
    INFO("byte ", at);
    CHECK(MessageOf(path, altered, true) != "");
    MessageOf(path, altered, false);  // an error or an LM, but no wild read
  }
}

TEST_CASE("file: a header or table that lies under a right checksum is refused or harmless") {
  TemporaryFolder folder;
  const std::string bytes = SavedExample(&folder);
  const std::string path = folder.File("lying.lm");
  FileHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::size_t table_end = sizeof header + header.num_sections * sizeof(SectionEntry);
  const std::size_t checksum_at = offsetof(FileHeader, checksum);
  for (std::size_t at = 0; at < table_end; at += 4) {
    if (at == offsetof(FileHeader, num_sections)) continue;  // fixed up with the file's own
    if (at >= checksum_at && at < checksum_at + 8) continue;
    for (const std::uint32_t value : {0u, 1u, 2u, 7u, 64u, 0x7fffffffu, 0xffffffffu}) {
      std::string lying = bytes;
      std::memcpy(lying.data() + at, &value, sizeof value);
      INFO("offset ", at, " value ", value);
      MessageOf(path, WithHeaderChecksum(lying), false);
    }
  }
  CHECK(MessageOf(path, WithHeaderChecksum(bytes), true) == "");
}

TEST_CASE("file: what is wrong is said") {
  TemporaryFolder folder;
  const std::string bytes = SavedExample(&folder);
  const std::string path = folder.File("wrong.lm");
  const auto message = [&](std::size_t at, std::uint32_t value) {
    std::string wrong = bytes;
    std::memcpy(wrong.data() + at, &value, sizeof value);
    return MessageOf(path, WithHeaderChecksum(wrong), false);
  };
  CHECK(Contains(message(offsetof(FileHeader, version), 99), "format version 99"));
  CHECK(Contains(message(offsetof(FileHeader, byte_order), 0x04030201u), "byte order"));
  CHECK(Contains(message(offsetof(FileHeader, order), 7), "order 7"));
  CHECK(Contains(message(offsetof(FileHeader, vocab_size), 0), "vocab_size"));
  CHECK(Contains(message(offsetof(FileHeader, bos), 6), "special symbol"));
  CHECK(Contains(message(offsetof(FileHeader, eos), 6), "special symbol"));
  CHECK(Contains(message(offsetof(FileHeader, unk), 6), "special symbol"));
}

TEST_CASE("file: a section that ends or begins outside the file is refused by its table") {
  TemporaryFolder folder;
  const std::string bytes = SavedExample(&folder);
  const std::string path = folder.File("outside.lm");
  FileHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto message = [&](std::size_t at, auto change) {
    std::string altered = bytes;
    SectionEntry entry;
    std::memcpy(&entry, altered.data() + at, sizeof entry);
    change(&entry);
    std::memcpy(altered.data() + at, &entry, sizeof entry);
    WriteBytes(path, WithHeaderChecksum(altered));
    try {
      ListSections(path);  // reads header and table, nothing else
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::uint64_t size = bytes.size();
  const std::uint64_t aligned_end = (size + kSectionAlignment - 1) & ~(kSectionAlignment - 1);
  REQUIRE(header.num_sections > 4);
  for (std::uint32_t i = 0; i < header.num_sections; ++i) {
    const std::size_t at = sizeof header + i * sizeof(SectionEntry);
    INFO("section ", i);
    CHECK(message(at, [&](SectionEntry* e) { e->size = size - e->offset; }) == "");
    CHECK(Contains(message(at, [&](SectionEntry* e) { e->size = size - e->offset + 1; }),
                   "lies outside the file"));
    CHECK(Contains(message(at, [&](SectionEntry* e) { e->size = ~std::uint64_t{0}; }),
                   "lies outside the file"));
    CHECK(Contains(message(at, [&](SectionEntry* e) { e->offset = aligned_end + 4096; }),
                   "lies outside the file"));
    CHECK(Contains(message(at, [&](SectionEntry* e) { e->offset += 1; }), "lies outside the file"));
  }
}

TEST_CASE("arpa: words may have vertical tabs and form feeds, as in KenLM") {
  TemporaryFolder folder;
  const std::string path = folder.File("words.arpa");
  const std::vector<std::string> words = {"x\v", "\f", "z"};
  WriteArpa(*ExampleLm(), path, words);
  CHECK(ReadArpaWords(path) == words);
}

}  // namespace
}  // namespace lattice_bpd
