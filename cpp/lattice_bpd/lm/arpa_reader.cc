#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/mapped_file.h"
#include "lattice_bpd/lm/arpa.h"
#include "lattice_bpd/lm/arpa_scan.h"
#include "lattice_bpd/lm/trie_builder.h"

namespace lattice_bpd {
namespace {

struct Unigram {
  std::string_view word;
  float log_prob;
  float backoff;
  std::uint64_t line;
};

class ArpaReader {
 public:
  explicit ArpaReader(const std::string& path) : file_(path), lines_(file_) {}

  // \data\ and the counts. Leaves line_ at the first section's title.
  void ReadHeader() {
    const std::string_view text = lines_.text();
    if (text.substr(0, 2) == "\x1f\x8b") lines_.Fail(1, "this is a gzip file; gunzip it first");
    if (text.substr(0, 5) == "LBPD-") {
      lines_.Fail(1, "this is a binary LM of lattice-bpd; open it with NGramLM.load");
    }
    if (IsUtf16(text)) {
      lines_.Fail(1, "this is UTF-16 text; expected UTF-8 (iconv -f UTF-16 -t UTF-8 converts it)");
    }
    do {
      if (!lines_.Next(&line_)) {
        lines_.Fail(lines_.number(), "no line \"\\data\\\" in the file; it is not ARPA text");
      }
    } while (line_ != "\\data\\");
    while (lines_.Next(&line_)) {
      if (line_.empty()) continue;
      if (line_.front() == '\\') break;
      ReadCount();
    }
    if (counts_.empty()) lines_.Fail(lines_.number(), "no \"ngram 1=COUNT\" line after \\data\\");
  }

  std::vector<Unigram> ReadUnigrams() {
    ExpectTitle(1);
    std::vector<Unigram> unigrams;
    std::string_view fields[kMaxFields];
    float log_prob, backoff;
    while (NextEntry(1, fields, &log_prob, &backoff)) {
      unigrams.push_back({fields[1], log_prob, backoff, lines_.number()});
    }
    CheckCount(1, unigrams.size());
    return unigrams;
  }

  std::shared_ptr<const BackoffLm> Read(const ArpaOptions& options) {
    ReadHeader();
    const std::vector<Unigram> unigrams = ReadUnigrams();
    MakeWordMap(unigrams, options);
    std::vector<NgramList> lists;
    lists.push_back(UnigramList(unigrams));
    for (int length = 2; length <= static_cast<int>(counts_.size()); ++length) {
      lists.push_back(ReadNgrams(length));
    }
    if (!UnkMatters(lists)) vocabulary_.unlisted = nullptr;
    if (line_ != "\\end\\") {
      lines_.Fail(lines_.number(), "expected \\end\\ after the ", counts_.size(),
                  "-grams; the file is cut or has more orders than \\data\\ counts");
    }
    try {
      return BackoffLm::FromTrie(BuildTrie(vocabulary_, std::move(lists)));
    } catch (const NgramListError& error) {
      lines_.Fail(error.source(), error.what());
    }
  }

 private:
  void ReadCount() {
    std::string_view rest = line_;
    unsigned length = 0;
    std::uint64_t count = 0;
    const std::size_t equals = rest.find('=');
    std::string_view fields[kMaxFields];
    const bool good =
        equals != std::string_view::npos && SplitFields(rest.substr(0, equals), fields) == 2 &&
        fields[0] == "ngram" && ParseNumber(fields[1], &length) &&
        SplitFields(rest.substr(equals + 1), fields) == 1 && ParseNumber(fields[0], &count);
    if (!good) {
      lines_.Fail(lines_.number(), Quoted(line_), " in \\data\\; expected \"ngram ORDER=COUNT\"");
    }
    if (length != counts_.size() + 1) {
      lines_.Fail(lines_.number(), "the count of order ", length, "; expected order ",
                  counts_.size() + 1);
    }
    if (length > kMaxOrder) {
      lines_.Fail(lines_.number(), "order ", length, "; this library reads orders 1..", kMaxOrder);
    }
    if (count >= kNoNode) lines_.Fail(lines_.number(), "too many n-grams: ", count);
    counts_.push_back(count);
  }

  void ExpectTitle(int length) {
    if (line_ == StrCat("\\", length, "-grams:")) return;
    lines_.Fail(lines_.number(), Quoted(line_), "; expected \"\\", length,
                "-grams:\"; the file is cut or its counts are wrong");
  }

  // One line "log10_prob word.. [backoff]"; false at the next title, which stays in line_.
  bool NextEntry(int length, std::string_view* fields, float* log_prob, float* backoff) {
    do {
      if (!lines_.Next(&line_)) {
        line_ = {};
        lines_.Fail(lines_.number(), "the file ends in the ", length,
                    "-grams; it is cut (no \\end\\)");
      }
    } while (line_.empty());
    const int count = SplitFields(line_, fields);
    if (line_.front() == '\\' && count == 1) return false;
    if (count != length + 1 && count != length + 2) {
      lines_.Fail(lines_.number(), Quoted(line_), " has ", std::min(count, kMaxFields),
                  count > kMaxFields ? " or more" : "", " fields; expected log10 probability, ",
                  length, " words and maybe a backoff");
    }
    *log_prob = ReadLog10(fields[0], "log10 probability");
    if (*log_prob > 0.0f) {
      lines_.Fail(lines_.number(), "log10 probability ", Quoted(fields[0]),
                  " is positive; expected 0 at most");
    }
    *backoff = count == length + 2 ? ReadLog10(fields[length + 1], "backoff") : 0.0f;
    return true;
  }

  // A log10 number as natural log. "-inf" is what some tools write for probability 0.
  float ReadLog10(std::string_view field, const char* what) {
    double value = 0.0;
    if (!ParseNumber(field, &value) || std::isnan(value) || value > 1e30) {
      lines_.Fail(lines_.number(), Quoted(field), " is no ", what, "; expected a finite number");
    }
    return static_cast<float>(std::max(value * M_LN10, -1e30));
  }

  void CheckCount(int length, std::uint64_t found) {
    if (found == counts_[length - 1]) return;
    lines_.Fail(lines_.number(), found, " ", length, "-grams up to here; \\data\\ says ",
                counts_[length - 1], ": the file is cut or was edited");
  }

  static bool IsSpecial(std::string_view word) {
    return word == "<s>" || word == "</s>" || word == "<unk>" || word == "<UNK>";
  }

  void MakeWordMap(const std::vector<Unigram>& unigrams, const ArpaOptions& options) {
    SpecialIds ids = options.special_ids;
    std::uint64_t vocab_size = options.words.size();
    decimal_ = options.words.empty();
    for (std::size_t i = 0; i < options.words.size(); ++i) {
      const std::string& word = options.words[i];
      const TokenId id = static_cast<TokenId>(i);
      if (word == "<s>" && !ids.bos) ids.bos = id;
      if (word == "</s>" && !ids.eos) ids.eos = id;
      if ((word == "<unk>" || word == "<UNK>") && !ids.unk) ids.unk = id;
      if (!symbols_.emplace(word, static_cast<Symbol>(i)).second) {
        throw ValueError(StrCat("from_arpa: vocab has the word ", Quoted(word), " twice (again at ",
                                i, "); each word needs one token id"));
      }
    }
    if (decimal_) {
      for (const Unigram& unigram : unigrams) {
        if (IsSpecial(unigram.word)) continue;
        const std::uint64_t id = DecimalId(unigram.word, unigram.line);
        vocab_size = std::max(vocab_size, id + 1);
      }
    }
    if (options.vocab_size && vocab_size > *options.vocab_size) {
      throw ValueError(
          StrCat("from_arpa: vocab_size is ", *options.vocab_size, ", but ",
                 decimal_ ? "the file has token id " : "vocab has a word for token id ",
                 vocab_size - 1, "; raise vocab_size or use the right file"));
    }
    if (!options.vocab_size && vocab_size == 0) {
      lines_.Fail(lines_.number(),
                  "no token id among the unigrams; pass vocab_size for a file "
                  "without any");
    }
    vocabulary_ = MakeVocabulary(options.vocab_size.value_or(vocab_size), ids);
  }

  std::uint64_t DecimalId(std::string_view word, std::uint64_t line) const {
    std::uint64_t id = 0;
    const bool plain =
        std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!plain || !ParseNumber(word, &id) || id >= kMaxVocabSize) {
      lines_.Fail(line, "the word ", Quoted(word), " is no decimal token id in 0..",
                  kMaxVocabSize - 1,
                  "; pass vocab= (the words in the order of their token ids) for a file of words");
    }
    return id;
  }

  Symbol SymbolOf(std::string_view word) {
    if (word == "<s>") return vocabulary_.bos;
    if (word == "</s>") return vocabulary_.eos;
    if (word == "<unk>" || word == "<UNK>") return vocabulary_.unk;
    if (decimal_) {
      const std::uint64_t id = DecimalId(word, lines_.number());
      if (id >= vocabulary_.vocab_size) {
        lines_.Fail(lines_.number(), "token id ", id, " is not among the unigrams");
      }
      return static_cast<Symbol>(id);
    }
    key_.assign(word);
    const auto found = symbols_.find(key_);
    if (found == symbols_.end()) {
      lines_.Fail(lines_.number(), "the word ", Quoted(word), " is not in vocab; add it, or take ",
                  "the vocabulary that the LM was trained with");
    }
    return found->second;
  }

  // As a word of a longer n-gram.
  Symbol ListedSymbolOf(std::string_view word) {
    const Symbol symbol = SymbolOf(word);
    if (vocabulary_.is_unlisted(symbol)) {
      lines_.Fail(lines_.number(), "the word ", Quoted(word),
                  " is not among the unigrams; add its unigram");
    }
    return symbol;
  }

  // Whether it matters that words which the file lacks are <unk>: they have its log probability
  // anyway, so <unk> must have a backoff or be in a longer n-gram.
  bool UnkMatters(const std::vector<NgramList>& lists) const {
    if (lists[0].backoff[vocabulary_.unk] != 0.0f) return true;
    return std::any_of(lists.begin() + 1, lists.end(), [this](const NgramList& list) {
      return std::count(list.symbols.begin(), list.symbols.end(), vocabulary_.unk) != 0;
    });
  }

  NgramList UnigramList(const std::vector<Unigram>& unigrams) {
    constexpr float kUnset = 1.0f;
    NgramList list;
    list.length = 1;
    const std::uint32_t size = vocabulary_.num_symbols();
    for (Symbol symbol = 0; symbol < size; ++symbol) list.symbols.push_back(symbol);
    list.log_prob.assign(size, kUnset);
    list.backoff.assign(size, 0.0f);
    list.source.assign(size, 0);
    for (const Unigram& unigram : unigrams) {
      const Symbol symbol = SymbolOf(unigram.word);
      if (vocabulary_.bos == vocabulary_.eos && symbol == vocabulary_.bos) {  // both in one symbol
        if (unigram.word == "</s>") list.log_prob[symbol] = unigram.log_prob;
        if (unigram.word == "<s>") list.backoff[symbol] = unigram.backoff;
        list.source[symbol] = unigram.line;
        continue;
      }
      if (list.log_prob[symbol] != kUnset) {
        lines_.Fail(unigram.line, "the unigram ", Quoted(unigram.word),
                    " occurs twice, first in line ", list.source[symbol]);
      }
      // KenLM's lmplz gives <s>, which is no event, log10 0.
      const bool certain_bos = symbol == vocabulary_.bos && unigram.log_prob == 0.0f;
      list.log_prob[symbol] = certain_bos ? kNeverLogProb : unigram.log_prob;
      list.backoff[symbol] = unigram.backoff;
      list.source[symbol] = unigram.line;
    }
    const float unk = list.log_prob[vocabulary_.unk];
    const float unseen = unk == kUnset ? -kUnseenCost : unk;
    std::vector<std::uint8_t> unlisted(BytesOfBits(vocabulary_.vocab_size), 0);
    for (Symbol symbol = 0; symbol < size; ++symbol) {
      if (list.log_prob[symbol] != kUnset) continue;
      const bool boundary = symbol == vocabulary_.bos || symbol == vocabulary_.eos;
      list.log_prob[symbol] = boundary ? kNeverLogProb : unseen;
      const bool is_word = vocabulary_.is_token(symbol) && !boundary && symbol != vocabulary_.unk;
      if (is_word) unlisted[symbol / 8] |= static_cast<std::uint8_t>(1 << symbol % 8);
    }
    const bool any = std::any_of(unlisted.begin(), unlisted.end(), [](auto bits) { return bits; });
    if (any) {
      vocabulary_.unlisted = std::make_shared<const std::vector<std::uint8_t>>(std::move(unlisted));
    }
    return list;
  }

  NgramList ReadNgrams(int length) {
    ExpectTitle(length);
    NgramList list;
    list.length = length;
    // A count that the rest of the file cannot hold must not make us reserve memory for it.
    const std::uint64_t max_count = lines_.bytes_left() / (2 * (length + 1)) + 1;
    const std::uint64_t count = std::min(counts_[length - 1], max_count);
    list.symbols.reserve(count * length);
    list.log_prob.reserve(count);
    std::string_view fields[kMaxFields];
    float log_prob, backoff;
    while (NextEntry(length, fields, &log_prob, &backoff)) {
      for (int i = 1; i <= length; ++i) list.symbols.push_back(ListedSymbolOf(fields[i]));
      list.log_prob.push_back(log_prob);
      list.backoff.push_back(backoff);
      list.source.push_back(lines_.number());
    }
    CheckCount(length, list.size());
    return list;
  }

  MappedFile file_;
  ArpaLines lines_;
  std::string_view line_;
  std::vector<std::uint64_t> counts_;
  Vocabulary vocabulary_;
  bool decimal_ = true;
  std::unordered_map<std::string, Symbol> symbols_;
  std::string key_;
};

}  // namespace

std::shared_ptr<const BackoffLm> ReadArpa(const std::string& path, const ArpaOptions& options) {
  return ArpaReader(path).Read(options);
}

std::vector<std::string> ReadArpaWords(const std::string& path) {
  ArpaReader reader(path);
  reader.ReadHeader();
  std::vector<std::string> words;
  for (const Unigram& unigram : reader.ReadUnigrams()) {
    const bool special = unigram.word == "<s>" || unigram.word == "</s>" ||
                         unigram.word == "<unk>" || unigram.word == "<UNK>";
    if (!special) words.emplace_back(unigram.word);
  }
  return words;
}

}  // namespace lattice_bpd
