// Counts files whose checksums are right and whose records are not.
#include "lattice_bpd/train/count_file.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/train/count_runs.h"

namespace lattice_bpd {
namespace {

// A file of these records, in one block or in several.
std::string FileOf(const std::vector<CountRecord>& records, std::size_t block_bytes) {
  std::string bytes;
  CountFileWriter writer(MakeVocabulary(9, {}), 2, block_bytes,
                         [&](const void* data, std::size_t size) {
                           bytes.append(static_cast<const char*>(data), size);
                         });
  for (const CountRecord& record : records) writer.Add(record);
  writer.Finish(1, "");
  return bytes;
}

TEST_CASE("counts file: records that do not rise are refused, not merged") {
  CHECK(!MergeRuns(OpenRuns({FileOf({{2, 1, 3}, {5, 1, 0}, {6, 1, 0}}, 4096)})).empty());
  for (const std::size_t block_bytes : {std::size_t{4096}, std::size_t{1}}) {
    for (const Symbol low : {Symbol{0}, Symbol{2}, Symbol{4}}) {
      const std::string bytes = FileOf({{5, 1, 3}, {low, 1, 3}, {6, 1, 3}}, block_bytes);
      CHECK_THROWS_AS(MergeRuns(OpenRuns({bytes})), FormatError);
    }
  }
}

TEST_CASE("counts file: one without records, sources or blocks") {
  const CountFiles files = OpenRuns({FileOf({}, 4096)});
  CHECK(files[0]->blocks().empty());
  CHECK(files[0]->num_records() == 0);
}

}  // namespace
}  // namespace lattice_bpd
