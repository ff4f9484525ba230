// Token ids, symbols and FST labels: three numberings, converted here and nowhere else.
//
//   token_id  the model's own id, 0 .. vocab_size - 1
//   symbol    what an LM counts: every token_id, then the special symbols (<s>, </s>, <unk>) that
//             are not token ids themselves, numbered from vocab_size on
//   label     what an FST arc carries: symbol + 1, since 0 is epsilon in OpenFst
#ifndef LATTICE_BPD_BASE_LABEL_H_
#define LATTICE_BPD_BASE_LABEL_H_

#include <cstdint>
#include <limits>

namespace lattice_bpd {

using TokenId = std::int32_t;
using Symbol = std::uint32_t;
using Label = std::int32_t;

constexpr Symbol kNoSymbol = std::numeric_limits<Symbol>::max();
constexpr TokenId kPadToken = -1;  // fills the rows of a draft list that hold no draft

constexpr Label ToLabel(Symbol symbol) { return static_cast<Label>(symbol) + 1; }
constexpr Symbol ToSymbol(Label label) { return static_cast<Symbol>(label - 1); }

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_LABEL_H_
