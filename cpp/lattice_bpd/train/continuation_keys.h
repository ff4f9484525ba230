// The symbols that follow a position, packed into one integer that sorts as they do.
//
//   position of "the" in  <s> the cat sat </s>,  order 4:
//       | cat + 1 | sat + 1 | </s> + 1 |      first symbol in the highest bits
//   position of "sat":
//       | </s> + 1 |    0   |    0     |      0: the sequence has ended
#ifndef LATTICE_BPD_TRAIN_CONTINUATION_KEYS_H_
#define LATTICE_BPD_TRAIN_CONTINUATION_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/label.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

using Key64 = std::uint64_t;
__extension__ typedef unsigned __int128 Key128;  // NOLINT: GCC and Clang, every 64-bit platform

// How keys of `length` symbols are packed.
struct KeyLayout {
  int length = 0;  // order - 1
  int bits = 0;    // for each symbol

  KeyLayout(int order, std::uint32_t num_symbols) : length(order - 1) {
    while (num_symbols >> bits != 0) ++bits;
  }
  int width() const { return length * bits; }
  int shift(int position) const { return (length - 1 - position) * bits; }

  // Symbol `position` of the key, plus 1; 0 after the end.
  template <typename Key>
  std::uint32_t SymbolPlusOne(Key key, int position) const {
    return static_cast<std::uint32_t>(key >> shift(position)) & ((std::uint32_t{1} << bits) - 1);
  }

  // How many leading symbols of two keys agree.
  template <typename Key>
  int CommonPrefix(Key a, Key b) const {
    const Key difference = a ^ b;
    int position = 0;
    while (position < length && difference >> shift(position) == 0) ++position;
    return position;
  }
};

// The key of what follows, one position further left. Order 1 has nothing to pack.
template <typename Key>
Key Prepend(const KeyLayout& layout, Symbol symbol, Key key) {
  if (layout.length == 0) return 0;
  return static_cast<Key>(symbol + 1) << layout.shift(0) | key >> layout.bits;
}

// Writes the key of every position whose own symbol s is among the next.size() symbols from
// first_symbol on, to keys[next[s - first_symbol]++]. A final </s> has no key, nor has what the
// sequences hold back (layout.length tokens or more).
template <typename Key>
void ScatterKeys(const TokenSequences& sequences, const Vocabulary& vocabulary,
                 const KeyLayout& layout, Symbol first_symbol, std::vector<std::uint64_t> next,
                 Key* keys) {
  const auto put = [&](Symbol symbol, Key key) {
    const Symbol bucket = symbol - first_symbol;  // wraps around below first_symbol
    if (bucket < next.size()) keys[next[bucket]++] = key;
  };
  InterruptCounter interrupts;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Span<TokenId> words = WordsOfSequence(sequences, vocabulary, i);
    const std::size_t counted = words.size() - (sequences.ends(i) ? 0 : sequences.held_back);
    Key key = sequences.ends(i) ? Prepend(layout, vocabulary.eos, Key{0}) : Key{0};
    for (std::size_t j = words.size(); j-- > 0;) {
      interrupts.Count();
      const Symbol symbol = static_cast<Symbol>(words[j]);
      if (j < counted) put(symbol, key);
      key = Prepend(layout, symbol, key);
    }
    if (sequences.begins(i)) put(vocabulary.bos, key);
  }
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_CONTINUATION_KEYS_H_
