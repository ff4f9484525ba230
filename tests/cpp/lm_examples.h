// Small models and files that several tests use.
#ifndef LATTICE_BPD_TESTS_CPP_LM_EXAMPLES_H_
#define LATTICE_BPD_TESTS_CPP_LM_EXAMPLES_H_

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lattice_bpd/base/temporary_file.h"
#include "lattice_bpd/lm/backoff_lm.h"
#include "lattice_bpd/lm/trie_builder.h"

namespace lattice_bpd {

// A folder that goes away with its files at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = DefaultTemporaryFolder() + "/lattice_bpd_test.XXXXXX";  // honours TMPDIR
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TemporaryFolder() {
    for (const std::string& file : files_) ::unlink(file.c_str());
    ::rmdir(path_.c_str());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Ngram {
  std::vector<Symbol> symbols;
  float log_prob;
  float backoff;
};

// The lists that BuildTrie takes; `source` counts the entries of each order from 1.
inline std::vector<NgramList> ListsOf(int order, const std::vector<Ngram>& ngrams) {
  std::vector<NgramList> lists(order);
  for (int m = 0; m < order; ++m) lists[m].length = m + 1;
  for (const Ngram& ngram : ngrams) {
    NgramList& list = lists[ngram.symbols.size() - 1];
    list.symbols.insert(list.symbols.end(), ngram.symbols.begin(), ngram.symbols.end());
    list.log_prob.push_back(ngram.log_prob);
    list.backoff.push_back(ngram.backoff);
    list.source.push_back(list.size());
  }
  return lists;
}

// Three tokens a = 0, b = 1, c = 2, then <s> = 3, </s> = 4, <unk> = 5. All numbers are natural
// logs in eighths, so that sums of them are exact:
//
//   a -1 (backoff -.5)    a b   -.25 (backoff -.125)    a b c  -.125
//   b -1.5 (-.25)         b c   -.5  (-.75)             <s> a b -.375
//   c -2                  <s> a -.625 (-1.25)
//   <s> (-.875), </s> -3
inline std::vector<Ngram> ExampleNgrams() {
  return {{{0}, -1.0f, -0.5f},        {{1}, -1.5f, -0.25f},      {{2}, -2.0f, 0.0f},
          {{3}, -99.0f, -0.875f},     {{4}, -3.0f, 0.0f},        {{5}, -50.0f, 0.0f},
          {{0, 1}, -0.25f, -0.125f},  {{1, 2}, -0.5f, -0.75f},   {{3, 0}, -0.625f, -1.25f},
          {{0, 1, 2}, -0.125f, 0.0f}, {{3, 0, 1}, -0.375f, 0.0f}};
}

inline std::shared_ptr<const BackoffLm> ExampleLm() {
  const Vocabulary vocabulary = MakeVocabulary(3, {});
  return BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(3, ExampleNgrams())));
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TESTS_CPP_LM_EXAMPLES_H_
