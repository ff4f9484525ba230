#include "lattice_bpd/train/token_sequences.h"

#include <algorithm>
#include <numeric>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

void CheckOffsets(const TokenSequences& sequences) {
  const Span<std::int64_t> offsets = sequences.offsets;
  const auto num_ids = static_cast<std::int64_t>(sequences.token_ids.size());
  if (offsets.empty()) {
    throw ValueError("n-gram counting: offsets is empty; expected one entry more than sequences");
  }
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i + 1] >= offsets[i]) continue;
    throw ValueError(StrCat("n-gram counting: offsets[", i + 1, "] is ", offsets[i + 1],
                            ", below offsets[", i, "] = ", offsets[i],
                            "; expected offsets that never fall"));
  }
  if (offsets[0] != 0 || offsets[offsets.size() - 1] != num_ids) {
    throw ValueError(StrCat("n-gram counting: offsets run from ", offsets[0], " to ",
                            offsets[offsets.size() - 1], "; expected 0 to ", num_ids,
                            ", the number of token ids"));
  }
}

void CheckTokenIds(const TokenSequences& sequences, std::uint32_t vocab_size) {
  const Span<TokenId> ids = sequences.token_ids;
  const auto outside = [&](TokenId id) { return static_cast<std::uint32_t>(id) >= vocab_size; };
  const TokenId* bad = std::find_if(ids.begin(), ids.end(), outside);
  if (bad == ids.end()) return;
  const std::int64_t index = bad - ids.begin();
  const Span<std::int64_t> offsets = sequences.offsets;
  const std::int64_t* after = std::upper_bound(offsets.begin(), offsets.end(), index);
  throw ValueError(StrCat("n-gram counting: token id ", *bad, " at index ", index, " (sequence ",
                          after - offsets.begin() - 1, ", position ", index - after[-1],
                          ") is outside the vocabulary; expected 0..", vocab_size - 1,
                          ": raise vocab_size or tokenize with the model's own tokenizer"));
}

}  // namespace

void CheckSequences(const TokenSequences& sequences, const Vocabulary& vocabulary) {
  CheckOffsets(sequences);
  CheckTokenIds(sequences, vocabulary.vocab_size);
}

std::vector<std::uint64_t> CountEvents(const TokenSequences& sequences,
                                       const Vocabulary& vocabulary) {
  std::vector<std::uint64_t> events(vocabulary.num_symbols(), 0);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Span<TokenId> words = WordsOfSequence(sequences, vocabulary, i);
    const std::size_t counted = words.size() - (sequences.ends(i) ? 0 : sequences.held_back);
    for (std::size_t j = 0; j < counted; ++j) ++events[static_cast<Symbol>(words[j])];
  }
  events[vocabulary.eos] += sequences.num_ended();
  return events;
}

void CheckHasText(const std::vector<std::uint64_t>& events, std::uint64_t num_sequences) {
  const std::uint64_t num_events = std::accumulate(events.begin(), events.end(), std::uint64_t{0});
  if (num_events > num_sequences) return;
  throw ValueError(StrCat("n-gram counting: the corpus has no text: ", num_sequences,
                          " sequences without a token; expected at least one token"));
}

std::vector<std::uint64_t> CheckAndCountEvents(const TokenSequences& sequences,
                                               const Vocabulary& vocabulary) {
  CheckSequences(sequences, vocabulary);
  std::vector<std::uint64_t> events = CountEvents(sequences, vocabulary);
  CheckHasText(events, sequences.size());
  return events;
}

}  // namespace lattice_bpd
