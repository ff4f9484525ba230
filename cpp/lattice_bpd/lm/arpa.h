// Reads and writes ARPA files.
//
// Words are decimal token ids ("17") unless a word list gives each token id its word. <s>, </s>
// and <unk> are the special symbols. Numbers are log10 in the file and natural logs everywhere
// else. What the reader takes as harmless: text before \data\ (CMU toolkits write pages of it),
// spaces for tabs, n-grams in any order, missing backoffs (weight 1), Windows line ends, a UTF-8
// byte order mark.
//
// Words are bytes in any encoding that extends ASCII: they are compared, not decoded.
#ifndef LATTICE_BPD_LM_ARPA_H_
#define LATTICE_BPD_LM_ARPA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lattice_bpd/lm/backoff_lm.h"

namespace lattice_bpd {

struct ArpaOptions {
  std::optional<std::uint64_t> vocab_size;  // unset: largest id + 1, or the number of words
  std::vector<std::string> words;           // words[i] is token id i; empty: decimal token ids
  SpecialIds special_ids;
};

// Token ids that the file does not list are <unk>, in histories and as events, as in KenLM: they
// get its probabilities if it has some, else cost 1000. Throws IoError, ValueError (options),
// FormatError with the line of what cannot be used.
std::shared_ptr<const BackoffLm> ReadArpa(const std::string& path, const ArpaOptions& options);

// The words of the unigram section in file order, <s>, </s> and <unk> left out: a word list for
// ArpaOptions where none came with the file.
std::vector<std::string> ReadArpaWords(const std::string& path);

// Nine significant digits, so that reading the file back gives the same floats. `words` as in
// ArpaOptions. Written to a temporary name and renamed.
void WriteArpa(const BackoffLm& lm, const std::string& path, const std::vector<std::string>& words);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_LM_ARPA_H_
