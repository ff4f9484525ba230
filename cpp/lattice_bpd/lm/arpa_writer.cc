#include <charconv>
#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

#include "lattice_bpd/base/atomic_file.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/lm/arpa.h"
#include "lattice_bpd/lm/arpa_scan.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kFlushBytes = 1 << 20;

// A level's log probabilities as text. Printing a number takes longer than all else in its line,
// so each code's value is printed once.
class LogProbTexts {
 public:
  explicit LogProbTexts(const PackedLevel& level) : level_(level) {
    for (const float value : level.log_prob_values) texts_.push_back(Print(value));
  }

  void AppendTo(std::string* text, std::uint32_t node) const {
    *text += texts_.empty() ? Print(level_.LogProb(node)) : texts_[level_.LogProbCode(node)];
  }

  static std::string Print(float natural_log) {
    char digits[32];
    const double log10 = static_cast<double>(natural_log) / M_LN10;
    const auto end =
        std::to_chars(digits, digits + sizeof digits, log10, std::chars_format::general, 9);
    return {digits, end.ptr};
  }

 private:
  const PackedLevel& level_;
  std::vector<std::string> texts_;
};

// Appends to a text that is flushed in large pieces.
class ArpaWriter {
 public:
  ArpaWriter(const BackoffLm& lm, const std::vector<std::string>& words, AtomicFile* file)
      : lm_(lm), words_(words), file_(file) {}

  void WriteAll() {
    text_ += "\\data\\\n";
    for (int m = 0; m < lm_.order(); ++m) {
      const bool both = m == 0 && lm_.vocabulary().bos == lm_.vocabulary().eos;
      const std::uint64_t unlisted = m == 0 ? NumUnlisted() : 0;
      text_ += StrCat("ngram ", m + 1, "=", lm_.levels()[m].size() + both - unlisted, "\n");
    }
    for (int m = 0; m < lm_.order(); ++m) {
      text_ += StrCat("\n\\", m + 1, "-grams:\n");
      std::vector<Symbol> ngram(m + 1);
      WriteBelow(0, 0, LogProbTexts(lm_.levels()[m]), &ngram);
    }
    text_ += "\n\\end\\\n";
    file_->Write(text_);
  }

 private:
  std::uint64_t NumUnlisted() const {
    std::uint64_t count = 0;
    for (Symbol id = 0; id < lm_.vocabulary().vocab_size; ++id) {
      count += lm_.vocabulary().is_unlisted(id);
    }
    return count;
  }

  // Writes the n-grams of ngram's length that extend node `history` of level depth - 1, whose
  // symbols are in `ngram`.
  void WriteBelow(std::size_t depth, std::uint32_t history, const LogProbTexts& log_probs,
                  std::vector<Symbol>* ngram) {
    const auto [first, last] = lm_.Children(static_cast<std::uint32_t>(depth), history);
    for (std::uint32_t node = first; node < last; ++node) {
      (*ngram)[depth] = lm_.levels()[depth].Key(node);
      if (depth == 0 && lm_.vocabulary().is_unlisted(node)) continue;
      if (depth + 1 == ngram->size()) {
        WriteNgram(node, *ngram, log_probs);
      } else {
        WriteBelow(depth + 1, node, log_probs, ngram);
      }
    }
  }

  void WriteNgram(std::uint32_t node, const std::vector<Symbol>& ngram,
                  const LogProbTexts& log_probs) {
    const PackedLevel& level = lm_.levels()[ngram.size() - 1];
    if (ngram.size() == 1 && node == lm_.vocabulary().bos && node == lm_.vocabulary().eos) {
      text_ += StrCat(LogProbTexts::Print(level.LogProb(node)), "\t</s>\n");
      text_ += LogProbTexts::Print(kNeverLogProb);  // <s>, which has the backoff
    } else {
      log_probs.AppendTo(&text_, node);
    }
    char separator = '\t';
    for (std::size_t position = 0; position < ngram.size(); ++position) {
      text_ += separator;
      AppendWord(ngram[position], position);
      separator = ' ';
    }
    const float backoff = level.Backoff(node);
    if (backoff != 0.0f) {
      text_ += '\t';
      text_ += LogProbTexts::Print(backoff);
    }
    text_ += '\n';
    if (text_.size() < kFlushBytes) return;
    CheckInterrupted();
    file_->Write(text_);
    text_.clear();
  }

  // Where one token id is <s> and </s>, it is <s> in front, where it can only be a context.
  void AppendWord(Symbol symbol, std::size_t position) {
    const Vocabulary& vocabulary = lm_.vocabulary();
    if (symbol == vocabulary.bos && (position == 0 || symbol != vocabulary.eos)) {
      text_ += "<s>";
    } else if (symbol == vocabulary.eos) {
      text_ += "</s>";
    } else if (symbol == vocabulary.unk) {
      text_ += "<unk>";
    } else if (words_.empty()) {
      char digits[16];
      text_.append(digits, std::to_chars(digits, digits + sizeof digits, symbol).ptr);
    } else {
      text_ += words_[symbol];
    }
  }

  const BackoffLm& lm_;
  const std::vector<std::string>& words_;
  AtomicFile* file_;
  std::string text_;
};

void CheckWords(const BackoffLm& lm, const std::vector<std::string>& words) {
  if (words.empty()) return;
  if (words.size() != lm.vocabulary().vocab_size) {
    throw ValueError(StrCat("to_arpa: vocab has ", words.size(), " words; the LM has ",
                            lm.vocabulary().vocab_size, " token ids"));
  }
  const Vocabulary& vocabulary = lm.vocabulary();
  std::unordered_set<std::string> seen;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool unk = words[i] == "<unk>" || words[i] == "<UNK>";
    const Symbol meant = words[i] == "<s>"    ? vocabulary.bos
                         : words[i] == "</s>" ? vocabulary.eos
                         : unk                ? vocabulary.unk
                                              : static_cast<Symbol>(i);
    if (!seen.insert(words[i]).second || meant != i) {
      throw ValueError(
          StrCat("to_arpa: the word ", Quoted(words[i]), " of token id ", i,
                 " is the word of another symbol too; give every token id its own word"));
    }
    if (!words[i].empty() && words[i].find_first_of(" \t\r\n") == std::string::npos) continue;
    throw ValueError(StrCat("to_arpa: the word of token id ", i,
                            " is empty or has white space in it, which ARPA cannot hold; leave "
                            "vocab out to write decimal token ids"));
  }
}

}  // namespace

void WriteArpa(const BackoffLm& lm, const std::string& path,
               const std::vector<std::string>& words) {
  CheckWords(lm, words);
  AtomicFile file(path);
  ArpaWriter(lm, words, &file).WriteAll();
  file.Commit();
}

}  // namespace lattice_bpd
