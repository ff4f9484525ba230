// Words of an LM: found by hashing, kept by the file; states are as short as their future allows.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/word_list.h"
#include "lattice_bpd/lm/word_scorer.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

TEST_CASE("a word list finds every word and nothing else") {
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "word" + std::to_string(i * i) + "\n";
  const WordList words(lines);
  REQUIRE(words.size() == 1000);
  for (Symbol i = 0; i < 1000; ++i) {
    CHECK(words.Find(words[i]) == i);
    CHECK(words.Find(std::string(words[i]) + "x") == kNoSymbol);
  }
  CHECK(words.Find("") == kNoSymbol);
  CHECK(WordList("").size() == 0);
  CHECK(WordList("").Find("a") == kNoSymbol);
}

TEST_CASE("what is no list of words is refused") {
  CHECK_THROWS_AS(WordList("a\nb"), ValueError);
  CHECK_THROWS_AS(WordList("a\n\nb\n"), ValueError);
  CHECK_THROWS_AS(WordList("a b\n"), ValueError);
  CHECK_THROWS_AS(WordList(std::string("a\0b\n", 4)), ValueError);
  CHECK_THROWS_AS(WordList("a\nb\na\n"), ValueError);
}

}  // namespace
}  // namespace lattice_bpd
