#include "lattice_bpd/lm/word_scorer.h"

#include <algorithm>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/text_nodes.h"

namespace lattice_bpd {
namespace {

// Calls visit(word) for each word of a text.
template <typename Visit>
void ForEachWord(std::string_view text, const Visit& visit) {
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    while (at != end && IsSpace(*at)) ++at;
    if (at == end) return;
    const char* const begin = at;
    while (at != end && !IsSpace(*at)) ++at;
    visit(std::string_view(begin, static_cast<std::size_t>(at - begin)));
  }
}

}  // namespace

LmState Minimized(const BackoffLm& lm, LmState state) {
  for (; state.length > 0; --state.length) {
    const PackedLevel& level = lm.levels()[state.length - 1];
    const std::uint32_t node = state.nodes[state.length - 1];
    if (level.Backoff(node) != 0.0f) break;
    const auto [begin, end] = level.Children(node);
    if (begin != end) break;
  }
  return state;
}

WordScorer::WordScorer(std::shared_ptr<const BackoffLm> lm, double missing_unk)
    : lm_(std::move(lm)), words_(lm_->vocabulary().words.get()), unk_(lm_->vocabulary().unk) {
  const float unk = lm_->levels()[0].LogProb(unk_);
  unk_log_prob_ = unk == -kUnseenCost ? static_cast<float>(missing_unk) : unk;
  begin_ = Minimized(*lm_, lm_->Query({}, lm_->vocabulary().bos).next);
}

Symbol WordScorer::SymbolOf(std::string_view word) const {
  if (words_ == nullptr) throw ValueError("words: the LM has none; give it some (with_words)");
  const Vocabulary& vocabulary = lm_->vocabulary();
  const Symbol id = words_->Find(word);
  if (id != kNoSymbol) return vocabulary.ListedOrUnk(id);
  if (word == "<s>") return vocabulary.bos;
  if (word == "</s>") return vocabulary.eos;
  return unk_;
}

LmStep WordScorer::Step(const LmState& state, Symbol symbol) const {
  LmStep step = lm_->Query(state, symbol);
  if (symbol == unk_ && state.length == static_cast<std::uint32_t>(step.num_backoffs)) {
    step.log_prob = unk_log_prob_;
  }
  step.next = Minimized(*lm_, step.next);
  return step;
}

WordScore WordScorer::Score(const LmState& state, Symbol symbol, LmState* next) const {
  const LmStep step = Step(state, symbol);
  // As many symbols of history as the state has, less the backoffs that were paid.
  const std::uint32_t matched = state.length - static_cast<std::uint32_t>(step.num_backoffs);
  *next = step.next;
  return {step.TotalLogProb(), matched + 1, symbol == unk_};
}

void WordScorer::Begin(std::size_t size, SymbolTexts* texts) const {
  if (texts->ends.empty()) texts->symbols.reserve(size + 2);
  if (texts->bos) texts->symbols.push_back(lm_->vocabulary().bos);
}

void WordScorer::End(SymbolTexts* texts) const {
  if (texts->eos) texts->symbols.push_back(lm_->vocabulary().eos);
  texts->ends.push_back(texts->symbols.size());
}

void WordScorer::Add(std::string_view text, SymbolTexts* texts) const {
  Begin(text.size() / 2, texts);
  ForEachWord(text, [&](std::string_view word) { texts->symbols.push_back(SymbolOf(word)); });
  End(texts);
}

void WordScorer::Add(Span<TokenId> token_ids, SymbolTexts* texts) const {
  Begin(token_ids.size(), texts);
  for (const TokenId id : token_ids) {
    if (id < 0) throw ValueError(StrCat("score: token id ", id, "; expected 0 or above"));
    texts->symbols.push_back(lm_->vocabulary().SymbolOf(id));
  }
  End(texts);
}

std::vector<TextTotal> WordScorer::Totals(const SymbolTexts& texts) const {
  const std::vector<PackedLevel>& levels = lm_->levels();
  const Span<Symbol> symbols(texts.symbols);
  std::vector<TextTotal> totals(texts.ends.size());
  TextNodes nodes(*lm_);
  std::size_t text = 0, first = 0;  // the text at hand, and where it begins
  for (std::size_t begin = 0; begin < symbols.size(); begin += kTextBlock) {
    const std::size_t count = std::min(kTextBlock, symbols.size() - begin);
    nodes.LookUp(symbols.Slice(begin, symbols.size()), count);
    for (std::size_t i = 0; i < count; ++i) {
      while (begin + i == texts.ends[text]) first = texts.ends[text++];
      const std::size_t before = begin + i - first;  // n-grams may not begin in the text before
      if (texts.bos && before == 0) continue;
      const std::size_t longest = std::min(levels.size(), before + 1);
      std::uint32_t length = 1;
      while (length < longest && nodes.Ending(i, length + 1) != kNoNode) ++length;
      const bool is_unk = symbols[begin + i] == unk_;
      double log_prob = is_unk && length == 1 ? unk_log_prob_
                                              : levels[length - 1].LogProb(nodes.Ending(i, length));
      for (std::uint32_t l = length; l < longest && nodes.EndingBefore(i, l) != kNoNode; ++l) {
        log_prob += levels[l - 1].Backoff(nodes.EndingBefore(i, l));
      }
      totals[text].log_prob += log_prob;
      totals[text].num_oov += is_unk;
    }
  }
  const int added = texts.bos + texts.eos;
  first = 0;
  for (std::size_t i = 0; i < totals.size(); ++i) {
    totals[i].num_words = static_cast<std::int64_t>(texts.ends[i] - first) - added;
    first = texts.ends[i];
  }
  return totals;
}

}  // namespace lattice_bpd
