#include "lattice_bpd/lm/unpack.h"

namespace lattice_bpd {
namespace {

TrieLevel UnpackLevel(const PackedLevel& packed) {
  TrieLevel level;
  const auto size = static_cast<std::uint32_t>(packed.size());
  level.log_prob_error = packed.form.log_prob_error;
  level.backoff_error = packed.form.backoff_error;
  level.log_prob.resize(size);
  for (std::uint32_t i = 0; i < size; ++i) level.log_prob[i] = packed.LogProb(i);
  if (packed.form.key_bytes != 0) {
    level.word.resize(size);
    for (std::uint32_t i = 0; i < size; ++i) level.word[i] = packed.Key(i);
  }
  if (packed.form.is_highest()) return level;
  level.backoff.resize(size);
  level.child_begin.resize(size + 1);
  for (std::uint32_t i = 0; i < size; ++i) level.backoff[i] = packed.Backoff(i);
  for (std::uint32_t i = 0; i <= size; ++i) level.child_begin[i] = packed.ChildBegin(i);
  return level;
}

}  // namespace

Trie UnpackLm(const BackoffLm& lm) {
  Trie trie{lm.vocabulary(), {}};
  for (const PackedLevel& level : lm.levels()) trie.levels.push_back(UnpackLevel(level));
  return trie;
}

}  // namespace lattice_bpd
