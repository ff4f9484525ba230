// Searches a few lattices one after another; cache_lines.py traces the memory that it accesses.
//
//   search_trace LM LATTICES
//
// LATTICES: int32 count, slots, top_k, context length; then all token ids (int32), scores (float)
// and contexts (int32). Prints the addresses of the LM's arrays. A marker, whose address
// cache_lines.py knows, is written before and after each search.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/lattice/sausage.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/lm/lm_file.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kMarker = std::size_t{1} << 33;  // MARKER in cache_lines.py

volatile std::uint32_t* MakeMarker() {
  void* const wanted = reinterpret_cast<void*>(kMarker);
  void* const marker =
      ::mmap(wanted, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (marker != wanted) throw ValueError("the marker's address is in use");
  return static_cast<volatile std::uint32_t*>(marker);
}

template <typename T>
void PrintRegion(std::size_t order, const char* name, const Span<T>& array) {
  if (array.empty()) return;
  std::printf("%zu-grams: %s\t%zu\t%zu\n", order, name,
              reinterpret_cast<std::size_t>(array.begin()),
              reinterpret_cast<std::size_t>(array.end()));
}

void PrintRegions(const BackoffLm& lm) {
  for (std::size_t m = 0; m < lm.levels().size(); ++m) {
    const PackedLevel& level = lm.levels()[m];
    PrintRegion(m + 1, "keys", level.keys);
    PrintRegion(m + 1, "samples", level.samples);
    PrintRegion(m + 1, "records", level.payload);
    PrintRegion(m + 1, "values", level.log_prob_values);
    PrintRegion(m + 1, "values", level.backoff_values);
    PrintRegion(m + 1, "child bases", level.child_bases);
    PrintRegion(m + 1, "child bases", level.wide_children);
  }
  std::fflush(stdout);  // read while this program runs
}

struct Lattice {
  Sausage sausage;
  std::vector<TokenId> context;
};

template <typename T>
std::vector<T> Read(std::ifstream* file, std::size_t count) {
  std::vector<T> values(count);
  const auto bytes = static_cast<std::streamsize>(count * sizeof(T));
  if (!file->read(reinterpret_cast<char*>(values.data()), bytes)) {
    throw ValueError("the file of lattices is too short");
  }
  return values;
}

std::vector<Lattice> ReadLattices(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<std::int32_t> sizes = Read<std::int32_t>(&file, 4);
  const std::size_t count = sizes[0], slots = sizes[1], top_k = sizes[2], context = sizes[3];
  const auto token_ids = Read<TokenId>(&file, count * slots * top_k);
  const auto scores = Read<float>(&file, count * slots * top_k);
  const auto contexts = Read<TokenId>(&file, count * context);
  std::vector<Lattice> lattices(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i * slots; j < (i + 1) * slots; ++j) {
      lattices[i].sausage.AddSlot({token_ids.data() + j * top_k, top_k},
                                  {scores.data() + j * top_k, top_k});
    }
    lattices[i].context.assign(contexts.begin() + i * context,
                               contexts.begin() + (i + 1) * context);
  }
  return lattices;
}

void Run(const char* lm_path, const char* lattices_path) {
  const std::shared_ptr<const BackoffLm> lm = LoadLm(lm_path, /*verify=*/false);
  const std::vector<Lattice> lattices = ReadLattices(lattices_path);
  PrintRegions(*lm);
  volatile std::uint32_t* const marker = MakeMarker();
  DraftList drafts;
  for (const Lattice& lattice : lattices) {
    *marker = 1;
    const LmState start = lm->StateOfContext(lattice.context, /*bos=*/true);
    FindDrafts(lattice.sausage, lm.get(), start, DraftOptions(), &drafts);
    *marker = 2;
  }
}

}  // namespace
}  // namespace lattice_bpd

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: search_trace LM LATTICES\n");
    return 2;
  }
  try {
    lattice_bpd::Run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "search_trace: %s\n", error.what());
    return 1;
  }
  return 0;
}
