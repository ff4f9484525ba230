#include "lattice_bpd/mixture/text_successors.h"

#include <algorithm>

namespace lattice_bpd {
namespace {

constexpr int kScanned = 32;  // successors of a suffix that are compared, the latest first

// The most frequent of a history's latest successors that are not in out[0 .. count - 1] yet,
// best first; of equal counts the later one. Returns the new count.
int AddMostFrequent(const ContextTrie& text, std::uint32_t history, int count, Successor* out) {
  std::uint32_t counts[kMaxSuccessors];
  int end = count, scanned = 0;
  for (std::uint32_t node = text.node(history).first_child; node != kNoNode && scanned < kScanned;
       node = text.node(node).next, ++scanned) {
    const ContextNode& ngram = text.node(node);
    if (end == kMaxSuccessors && !(ngram.count > counts[end - 1])) continue;
    bool is_new = true;
    for (int i = 0; i < count; ++i) is_new = is_new && out[i].token != ngram.word;
    if (!is_new) continue;
    int at = end < kMaxSuccessors ? end++ : end - 1;
    for (; at > count && ngram.count > counts[at - 1]; --at) {
      counts[at] = counts[at - 1];
      out[at].token = out[at - 1].token;
    }
    counts[at] = ngram.count;
    out[at].token = ngram.word;
  }
  return end;
}

}  // namespace

int FindTextSuccessors(const ContextTrie& text, const ContextState& state, Successor* out,
                       SourceMatch* match) {
  *match = {};
  if (state.length == 0) return 0;
  int count = 0;
  for (std::uint32_t length = state.length; length > 0 && count < kMaxSuccessors; --length) {
    count = AddMostFrequent(text, state.nodes[length - 1], count, out);
  }
  double weights[kMaxOrder];  // l_m c(g b) / c(g) / c(g b), times what longer suffixes leave
  double left = 1.0;
  for (std::uint32_t length = state.length; length > 0; --length) {
    const ContextNode& history = text.node(state.nodes[length - 1]);
    const double share = 1.0 / (history.successors + history.distinct);
    weights[length] = left * share;
    left *= history.distinct * share;
  }
  for (int i = 0; i < count; ++i) {
    double prob = 0.0;
    for (std::uint32_t length = 1; length <= state.length; ++length) {
      const std::uint32_t history = state.nodes[length - 1];
      if (!text.MayHave(history, out[i].token)) break;  // nor do longer ones
      const std::uint32_t node = text.Find(history, out[i].token);
      if (node == kNoNode) break;
      prob += weights[length] * text.node(node).count;
    }
    out[i].prob = prob;
    match->top = std::max(match->top, prob);
  }
  match->is_active = count > 0;
  match->length = state.length;
  match->count = text.node(state.nodes[state.length - 1]).successors;
  return count;
}

}  // namespace lattice_bpd
