// Everything that a program does with an LM once it is open, for fuzz targets that open one.
#ifndef LATTICE_BPD_TESTS_FUZZ_USE_LM_H_
#define LATTICE_BPD_TESTS_FUZZ_USE_LM_H_

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/lm/lm_fst.h"
#include "lattice_bpd/lm/word_scorer.h"

namespace lattice_bpd {

// Three slots of up to four candidates from one end of the vocabulary to the other.
inline Sausage LatticeFor(const BackoffLm& lm) {
  const auto limit = static_cast<TokenId>(lm.vocabulary().vocab_size);
  Sausage lattice;
  for (TokenId slot = 0; slot < 3; ++slot) {
    std::vector<TokenId> token_ids;
    std::vector<float> scores;
    for (TokenId i = 0; i < std::min<TokenId>(4, limit); ++i) {
      token_ids.push_back(i < 3 ? (slot + i) % limit : limit - 1);
      scores.push_back(-0.5f * static_cast<float>(i));
    }
    if (limit > 5) lattice.AddSlot(token_ids, scores);
    if (limit <= 5) lattice.AddSlot(std::vector<TokenId>{limit - 1}, std::vector<float>{0.0f});
  }
  return lattice;
}

// Damage that no checksum stopped may give any answer, or a ValueError; nothing else.
inline void UseLm(const BackoffLm& lm) {
  if (lm.vocabulary().words != nullptr) {
    const std::shared_ptr<const BackoffLm> borrowed(&lm, [](const BackoffLm*) {});
    const WordScorer scorer(borrowed, -100.0);
    SymbolTexts texts;
    scorer.Add(lm.vocabulary().words->lines(), &texts);
    scorer.Totals(texts);
  }
  for (Symbol word = 0; word < std::min<Symbol>(8, lm.vocabulary().num_symbols()); ++word) {
    LmState state = lm.StateOfContext({}, word % 2 == 0);
    for (int i = 0; i < 8; ++i) state = lm.Query(state, (word + i) % (i + 1)).next;
  }
  const Sausage lattice = LatticeFor(lm);
  const LmState start = lm.StateOfContext({}, true);
  const auto allow_value_error = [](const auto& work) {
    try {
      work();
    } catch (const ValueError&) {
    }
  };
  DraftOptions options;
  for (const std::string& name : FusedInstructionSets()) {
    SetFusedInstructionSet(name);
    options.engine = Engine::kFused;
    allow_value_error([&] {
      const DraftList drafts = FindDrafts(lattice, &lm, start, options);
      if (drafts.token_ids.size() != drafts.size() * lattice.num_slots()) std::abort();
    });
    allow_value_error([&] { FindTree(lattice, &lm, start, 1.0, 16); });
  }
  options.engine = Engine::kOpenFst;
  allow_value_error([&] { FindDrafts(lattice, &lm, start, options); });
  allow_value_error([&] { LmToFstBytes(lm, start, {}); });
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_FUZZ_USE_LM_H_
