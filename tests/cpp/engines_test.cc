// The builds of the fused engine, and damaged models. Other tests compare both engines' answers:
// transitions_test.cc, unlisted_test.cc, fused_test.cc.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/lm/lm_file.h"
#include "random_lattices.h"

namespace lattice_bpd {

namespace {

TEST_CASE("instruction sets: scalar is always there, unknown ones are refused") {
  const std::vector<std::string> names = FusedInstructionSets();
  CHECK(std::count(names.begin(), names.end(), "scalar") == 1);
#if defined(__aarch64__)
  CHECK(names.front() == "neon");
#endif
  CHECK_THROWS_WITH_AS(SetFusedInstructionSet("abacus"), doctest::Contains("abacus"), ValueError);
}

TEST_CASE("damaged models: an answer or a ValueError from every engine, no wild read") {
  UseOpenFst();  // or OpenFst ends the process where damage has left arcs unsorted
  TemporaryFolder folder;
  Random make(3);
  const auto lm = RandomLm(&make, 40, 40, 4, 400, false);
  const std::string path = folder.File("damaged.lm");
  SaveLm(*lm, path);
  const std::string good = ReadBytes(path);
  FileHeader header;
  std::memcpy(&header, good.data(), sizeof header);
  const std::size_t first = sizeof header + header.num_sections * sizeof(SectionEntry);
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    std::string bytes = good;
    for (std::uint32_t n = 1 + Below(&random, 60); n > 0; --n) {
      const auto at = first + Below(&random, static_cast<std::uint32_t>(good.size() - first));
      bytes[at] = static_cast<char>(Below(&random, 4) == 0 ? 0xff : random());
    }
    WriteBytes(path, bytes);
    INFO("seed ", seed);
    try {
      const auto damaged = LoadLm(path, false);
      const Sausage lattice = RandomLattice(&random, 40, 20);
      DraftOptions options;
      for (const Engine engine : {Engine::kFused, Engine::kOpenFst}) {
        options.engine = engine;
        for (const std::string& name : FusedInstructionSets()) {
          SetFusedInstructionSet(name);
          try {
            const DraftList drafts =
                FindDrafts(lattice, damaged.get(), damaged->StateOfContext({}, true), options);
            CHECK(drafts.token_ids.size() == drafts.size() * lattice.num_slots());
          } catch (const ValueError&) {
          }
        }
      }
    } catch (const FormatError&) {
    }
  }
  SetFusedInstructionSet("");
}

}  // namespace
}  // namespace lattice_bpd
