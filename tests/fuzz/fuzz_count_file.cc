// Counts files: merged and made into an LM, as they are and then with every checksum made right.
// The first byte chooses order and smoothing, the rest is the file.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuzz_input.h"
#include "lattice_bpd/base/checksum.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/train/corpus_counter.h"
#include "lattice_bpd/train/count_file_checksum.h"
#include "lattice_bpd/train/count_runs.h"
#include "lattice_bpd/train/estimate.h"
#include "use_lm.h"

namespace lattice_bpd {

namespace {

void Train(const std::string& bytes, std::uint8_t choice) {
  try {
    const CountFiles files = OpenRuns({bytes});
    MergeRuns(files);
    EstimateOptions options;
    options.order = 1 + choice % files[0]->order();
    options.smoothing = static_cast<Smoothing>(choice / 8 % 5);
    options.unseen = choice < 128 ? Unseen::kCost : Unseen::kUniform;
    options.threads = 1;
    CorpusCounter counter(files[0]->vocabulary(), {options.order, 1 << 26, "", 1});
    counter.AddFile(files[0]);
    TrainReport report;
    UseLm(*BackoffLm::FromTrie(TrainLm(&counter, options, &report), Packing::kFast,
                               SuffixClosure::kKnown));
  } catch (const FormatError&) {
  } catch (const ValueError&) {
  }
}

// Small vocabularies only: a header of 40 bytes may declare two million symbols.
std::string Repaired(std::string bytes) {
  CountFileHeader header;
  CountFileFooter footer;
  if (bytes.size() < sizeof header + sizeof footer) return bytes;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::memcpy(header.magic, kCountMagic, sizeof kCountMagic);
  header.version = kCountFormatVersion;
  header.byte_order = kCountByteOrder;
  header.vocab_size %= 512;
  Overwrite(&bytes, 0, header);
  const std::size_t end = bytes.size() - sizeof footer;
  std::memcpy(&footer, bytes.data() + end, sizeof footer);
  std::memcpy(footer.magic, kCountEndMagic, sizeof kCountEndMagic);
  footer.file_size = bytes.size();
  footer.num_blocks %= (end - sizeof header) / sizeof(BlockEntry) + 1;
  const std::size_t index_at = end - footer.num_blocks * sizeof(BlockEntry);
  footer.sources_size %= index_at - sizeof header + 1;
  footer.sources_offset = index_at - footer.sources_size;
  std::vector<BlockEntry> index(footer.num_blocks);
  for (std::size_t i = 0; i < index.size(); ++i) {
    std::memcpy(&index[i], bytes.data() + index_at + i * sizeof(BlockEntry), sizeof(BlockEntry));
    const bool inside = index[i].offset <= end && index[i].size <= end - index[i].offset;
    if (inside) index[i].checksum = Checksum(bytes.data() + index[i].offset, index[i].size);
    Overwrite(&bytes, index_at + i * sizeof(BlockEntry), index[i]);
  }
  const std::string sources = bytes.substr(footer.sources_offset, footer.sources_size);
  footer.checksum = CountFileChecksum(header, sources, index, footer);
  Overwrite(&bytes, end, footer);
  return bytes;
}

}  // namespace
}  // namespace lattice_bpd

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lattice_bpd;
  if (size == 0) return -1;
  UseOpenFst();
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Train(bytes, data[0]);
  Train(Repaired(bytes), data[0]);
  return 0;
}
