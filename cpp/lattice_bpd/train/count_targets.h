// Counts of what a model predicts after the histories of a text: histories are the text's own
// tokens, events are the model's choices.
//
//   text       <s>  the  cat  sat         order 3:  <s> the | cat     order 2:  the | cat
//   targets          cat  sat  on                   the cat | sat               cat | sat
//                                                   cat sat | on                sat | on
//
// So an n-gram's last symbol is an event and all before it are not. A history may be stored though
// it is no event after its own history (the path to an n-gram); its count is 0 then, and estimation
// gives it the probability that backing off would (backed_off.h).
#ifndef LATTICE_BPD_TRAIN_COUNT_TARGETS_H_
#define LATTICE_BPD_TRAIN_COUNT_TARGETS_H_

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/lm/vocabulary.h"
#include "lattice_bpd/train/ngram_counts.h"
#include "lattice_bpd/train/token_sequences.h"

namespace lattice_bpd {

// A token without a prediction.
constexpr TokenId kNoTarget = -1;

// targets[i] is what follows token i of the sequences, or kNoTarget. <s> precedes each
// sequence (token_sequences.h); a final eos_id is no history. The counts are suffix closed.
// num_threads of 0 means every core. O(tokens * order * log(tokens)); 24 bytes for each token and
// thread while it runs.
// Throws ValueError where order is not in 1..6, the sequences are bad (CheckSequences), targets are
// of another number or outside kNoTarget .. vocab_size - 1, or there is none.
CountTrie CountTargets(const TokenSequences& sequences, Span<TokenId> targets,
                       const Vocabulary& vocabulary, int order, int num_threads = 0);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_COUNT_TARGETS_H_
