// Scoring a text by blocks: the same numbers as one query after the other.
#include "lattice_bpd/lm/score_text.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/lm/text_nodes.h"
#include "lattice_bpd/train/katz.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

std::vector<double> ScoreOneByOne(const BackoffLm& lm, const std::vector<TokenId>& text, bool bos,
                                  bool eos) {
  const bool has_bos = !text.empty() && static_cast<Symbol>(text[0]) == lm.vocabulary().bos;
  LmState state = lm.StateOfContext({}, bos && !has_bos);
  std::vector<double> log_probs;
  const auto score = [&](Symbol symbol) {
    const LmStep step = lm.Query(state, symbol);
    log_probs.push_back(step.TotalLogProb());
    state = step.next;
  };
  for (const TokenId token : text) score(static_cast<Symbol>(token));
  if (eos) score(lm.vocabulary().eos);
  return log_probs;
}

std::vector<TokenId> RandomText(std::mt19937* random, std::size_t size, int vocab_size) {
  std::vector<TokenId> text(size);
  for (TokenId& token : text) {  // small ids are frequent, so that long n-grams repeat
    token = static_cast<TokenId>((*random)() % (1 + (*random)() % vocab_size));
  }
  return text;
}

}  // namespace

TEST_CASE("the example by hand") {
  // a b c after <s>: -.625, then <s> a b -.375, then a b c -.125.
  const std::vector<TokenId> text = {0, 1, 2};
  CHECK(ScoreText(*ExampleLm(), text, true, false) == std::vector<double>{-0.625, -0.375, -0.125});
  // Behind nothing: a -1, a b -.25, a b c -.125; then </s>: c has no backoff, b c has -.75.
  CHECK(ScoreText(*ExampleLm(), text, false, true) ==
        std::vector<double>{-1.0, -0.25, -0.125, -0.75 - 3.0});
}

TEST_CASE("all texts: the same to the bit as query after query") {
  for (unsigned seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int order = 1 + static_cast<int>(seed % 6);
    const int vocab_size = seed % 2 == 0 ? 12 : 70000;  // keys of 2 and of 4 bytes, long runs
    const Vocabulary vocabulary = MakeVocabulary(vocab_size, {});
    const std::vector<TokenId> corpus = RandomText(&random, 20000, vocab_size);
    const std::vector<std::int64_t> offsets = {0, 20000};
    KatzOptions options;
    options.order = order;
    const auto lm = BackoffLm::FromTrie(TrainKatz({corpus, offsets}, vocabulary, options, nullptr));
    for (const std::size_t size : {0, 1, 2, 5, 255, 256, 257, 1000}) {
      const std::vector<TokenId> text = RandomText(&random, size, vocab_size);
      for (const bool bos : {true, false}) {
        for (const bool eos : {true, false}) {
          CHECK(ScoreText(*lm, text, bos, eos) == ScoreOneByOne(*lm, text, bos, eos));
        }
      }
    }
  }
}

TEST_CASE("candidates of several contexts, by hand") {
  const auto lm = ExampleLm();
  const std::vector<TokenId> contexts = {0, 1, 0};  // a b; nothing; a
  const std::vector<std::int64_t> offsets = {0, 2, 2, 3};
  const std::vector<TokenId> candidates = {2, 0, 1, 2, 1, 0};
  const std::vector<double> log_probs = LogProbs(*lm, contexts, offsets, candidates, true);
  std::vector<double> expected;
  for (const std::vector<TokenId>& context :
       {std::vector<TokenId>{0, 1}, std::vector<TokenId>{}, std::vector<TokenId>{0}}) {
    for (int i = 0; i < 2; ++i) {
      expected.push_back(LogProb(*lm, candidates[expected.size()], context, true));
    }
  }
  CHECK(log_probs == expected);
  CHECK(log_probs[0] == -0.125);  // a b c
  CHECK_THROWS_AS(LogProbs(*lm, contexts, offsets, std::vector<TokenId>{1, 2}, true), ValueError);
  CHECK_THROWS_AS(LogProbs(*lm, contexts, std::vector<std::int64_t>{0, 2}, candidates, true),
                  ValueError);
  CHECK_THROWS_AS(LogProbs(*lm, contexts, offsets, std::vector<TokenId>(3, -1), true), ValueError);
  const auto unknown = LogProbs(*lm, contexts, offsets, std::vector<TokenId>(3, 99), true);
  CHECK(unknown == LogProbs(*lm, contexts, offsets, std::vector<TokenId>(3, 3), true));  // <unk>
}

}  // namespace lattice_bpd
