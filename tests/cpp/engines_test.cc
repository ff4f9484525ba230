// Both engines, and every build of the fused one, return the same list to the last bit.
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

void CheckEngines(const Sausage& lattice, const BackoffLm* lm, const LmState& start,
                  DraftOptions options) {
  options.engine = Engine::kOpenFst;
  const DraftList expected = FindDrafts(lattice, lm, start, options);
  options.engine = Engine::kFused;
  for (const std::string& name : FusedInstructionSets()) {
    SetFusedInstructionSet(name);
    const DraftList drafts = FindDrafts(lattice, lm, start, options);
    INFO("instruction set ", name);
    CHECK(drafts.token_ids == expected.token_ids);
    CHECK(drafts.scores == expected.scores);
  }
  SetFusedInstructionSet("");
}

void CheckRandomCase(std::uint32_t seed, std::uint32_t vocab_size) {
  Random random(seed);
  const bool exact = Below(&random, 2) == 0;
  const int order = 1 + static_cast<int>(seed % 6);
  const std::uint32_t used = 2 + Below(&random, std::min(vocab_size - 2, 150u));
  const int ngrams = static_cast<int>(Below(&random, 4000));
  const auto lm = RandomLm(&random, vocab_size, used, order, ngrams, exact);
  for (int trial = 0; trial < 3; ++trial) {
    std::vector<TokenId> context(Below(&random, 8));
    for (TokenId& token : context) token = static_cast<TokenId>(Below(&random, used));
    const std::uint32_t widths[] = {4, 16, 17, 33, 70};
    const Sausage lattice = RandomLattice(&random, used, widths[Below(&random, 5)]);
    const double alphas[] = {1.0, 0.3, 0.0, -1.25, 16.0};
    DraftOptions options;
    options.num_drafts = 1 + static_cast<int>(Below(&random, 40));
    options.alpha = alphas[Below(&random, 5)];
    const LmState start = lm->StateOfContext(context, Below(&random, 2) == 0);
    INFO("seed ", seed, " trial ", trial, " order ", order, " p ", options.num_drafts);
    CheckEngines(lattice, lm.get(), start, options);
    CheckEngines(lattice, nullptr, {}, options);
  }
}

TEST_CASE("engines agree: narrow and wide slots, 2-byte keys") {
  for (std::uint32_t seed = 0; seed < 120; ++seed) CheckRandomCase(seed, 200);
}

TEST_CASE("engines agree: 4-byte keys") {
  for (std::uint32_t seed = 1000; seed < 1006; ++seed) CheckRandomCase(seed, 70000);
}

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
