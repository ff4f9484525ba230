// Token ids that an ARPA file lacks, or that only the model has, are <unk>: all searches answer as
// with an LM that lists each n-gram of <unk> once for each of them, to the last bit.
#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/draft/sample_tree.h"
#include "lattice_bpd/lm/lm_file.h"
#include "lattice_bpd/lm/score_text.h"
#include "lattice_bpd/lm/unpack.h"
#include "lattice_bpd/train/interpolate.h"
#include "random_cases.h"

namespace lattice_bpd {
namespace {

using Lm = std::shared_ptr<const BackoffLm>;

struct Pair {
  Lm unlisted;  // some token ids are <unk>
  Lm listed;    // the same probabilities, every n-gram listed
};

// Every third of the first `used` token ids is <unk>, but the one that is named as <unk>.
Vocabulary WithUnlisted(std::uint32_t vocab_size, std::uint32_t used, bool is_named) {
  SpecialIds ids;
  if (is_named) ids.unk = 0;
  Vocabulary vocabulary = MakeVocabulary(vocab_size, ids);
  std::vector<std::uint8_t> bits(BytesOfBits(vocab_size), 0);
  for (Symbol id = is_named ? 3 : 0; id < used; id += 3) bits[id / 8] |= 1 << id % 8;
  vocabulary.unlisted = std::make_shared<const std::vector<std::uint8_t>>(std::move(bits));
  return vocabulary;
}

// Appends an n-gram with every one of `copies` in place of each <unk>, and with <unk> itself.
void AddCopies(const Vocabulary& vocabulary, const std::vector<Symbol>& copies, const Ngram& ngram,
               std::size_t position, std::vector<Ngram>* out) {
  while (position < ngram.symbols.size() && ngram.symbols[position] != vocabulary.unk) ++position;
  if (position == ngram.symbols.size()) {
    out->push_back(ngram);
    return;
  }
  AddCopies(vocabulary, copies, ngram, position + 1, out);
  Ngram copy = ngram;
  for (const Symbol id : copies) {
    copy.symbols[position] = id;
    AddCopies(vocabulary, copies, copy, position + 1, out);
  }
}

// The LM that lists all has kBeyond token ids more.
constexpr std::uint32_t kBeyond = 4;

// Of `used` + kBeyond numbers: a token id in use, or one beyond those of the LM.
TokenId IdOf(TokenId number, std::uint32_t vocab_size, std::uint32_t used) {
  const auto symbol = static_cast<Symbol>(number);
  return static_cast<TokenId>(symbol < used ? symbol : vocab_size + symbol - used);
}

Pair RandomPair(Random* random, std::uint32_t vocab_size, std::uint32_t used, int order, int ngrams,
                bool exact) {
  const bool is_named = Below(random, 3) == 0;
  Vocabulary vocabulary = WithUnlisted(vocab_size, used, is_named);
  const Vocabulary plain = MakeVocabulary(
      vocab_size + kBeyond, {{}, {}, is_named ? std::optional<TokenId>(0) : std::nullopt});
  std::vector<Symbol> copies;
  if (Below(random, 4) == 0) vocabulary.unlisted = nullptr;
  for (Symbol id = 0; id < used; ++id) {
    if (vocabulary.is_unlisted(id)) copies.push_back(id);
  }
  for (Symbol id = vocab_size; id < vocab_size + kBeyond; ++id) copies.push_back(id);
  const auto renumber = [&](Ngram ngram) {
    for (Symbol& symbol : ngram.symbols) {
      symbol += symbol < vocab_size ? 0 : kBeyond;
    }
    return ngram;
  };
  std::set<std::vector<Symbol>> known;
  for (int i = 0; i < ngrams && order > 1; ++i) {
    std::vector<Symbol> ngram(2 + Below(random, static_cast<std::uint32_t>(order) - 1));
    for (Symbol& symbol : ngram) {
      symbol = std::min(Below(random, used), Below(random, used));
      if (Below(random, 8) == 0 || vocabulary.is_unlisted(symbol)) symbol = vocabulary.unk;
      if (used > 20 && &symbol != &ngram[i % ngram.size()] && symbol == vocabulary.unk) symbol = 1;
    }
    if (Below(random, 5) == 0) ngram[0] = vocabulary.bos;
    if (Below(random, 5) == 0) ngram.back() = vocabulary.eos;
    for (std::size_t size = 2; size <= ngram.size(); ++size) {
      known.insert({ngram.begin(), ngram.begin() + static_cast<std::ptrdiff_t>(size)});
    }
  }
  std::vector<Ngram> few, all;
  const Ngram unk = {{vocabulary.unk}, Sample(random, exact), Sample(random, exact)};
  for (Symbol symbol = 0; symbol < vocabulary.num_symbols(); ++symbol) {
    const bool is_unk = vocabulary.ListedOrUnk(symbol) == vocabulary.unk;
    few.push_back({{symbol}, Sample(random, exact), Sample(random, exact)});
    if (is_unk) few.back() = {{symbol}, unk.log_prob, unk.backoff};
    if (!vocabulary.is_unlisted(symbol)) AddCopies(plain, copies, renumber(few.back()), 0, &all);
    if (vocabulary.is_unlisted(symbol)) few.back().backoff = 0.0f;  // as the ARPA reader does
  }
  for (const std::vector<Symbol>& ngram : known) {
    few.push_back({ngram, Sample(random, exact), Sample(random, exact)});
    AddCopies(plain, copies, renumber(few.back()), 0, &all);
  }
  return {BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(order, few))),
          BackoffLm::FromTrie(BuildTrie(plain, ListsOf(order, all)))};
}

void CheckSame(const std::vector<TreeNode>& nodes, const std::vector<TreeNode>& expected) {
  REQUIRE(nodes.size() == expected.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    CHECK(nodes[i].token_id == expected[i].token_id);
    CHECK(nodes[i].parent == expected[i].parent);
    CHECK(nodes[i].log_prob == expected[i].log_prob);
  }
}

void CheckSame(const DraftList& drafts, const DraftList& expected) {
  CHECK(drafts.token_ids == expected.token_ids);
  CHECK(drafts.scores == expected.scores);
}

// All searches, with the same random numbers for both LMs.
void CheckSearches(const Pair& lms, const Sausage& lattice, const Tokens& context, bool bos,
                   double alpha, std::uint32_t seed) {
  const LmState start = lms.unlisted->StateOfContext(context, bos);
  const LmState same_start = lms.listed->StateOfContext(context, bos);
  for (const Normalization normalization : {Normalization::kGlobal, Normalization::kLocal}) {
    const DraftOptions options = {20, alpha, Engine::kFused, normalization};
    CheckSame(FindDrafts(lattice, lms.unlisted.get(), start, options),
              FindDrafts(lattice, lms.listed.get(), same_start, options));
    CheckSame(FindTree(lattice, lms.unlisted.get(), start, alpha, 40, normalization),
              FindTree(lattice, lms.listed.get(), same_start, alpha, 40, normalization));
    for (const auto objective : {ChainObjective::kAcceptLength, ChainObjective::kGreedyWalk}) {
      const ChainOptions chain = {alpha, objective, normalization};
      CheckSame(FindChain(lattice, lms.unlisted.get(), start, chain),
                FindChain(lattice, lms.listed.get(), same_start, chain));
    }
    SampleOptions samples = {alpha, 30};
    samples.key = seed;
    samples.normalization = normalization;
    SampledTree found, expected;
    SampleTree(lattice, lms.unlisted.get(), start, samples, &found);
    SampleTree(lattice, lms.listed.get(), same_start, samples, &expected);
    CheckSame(found.nodes, expected.nodes);
    CHECK(found.child_probs == expected.child_probs);
  }
}

void CheckOpenFst(const Pair& lms, const Sausage& lattice, const Tokens& context, bool bos,
                  double alpha) {
  DraftOptions options = {20, alpha, Engine::kOpenFst};
  const LmState start = lms.unlisted->StateOfContext(context, bos);
  const DraftList drafts = FindDrafts(lattice, lms.unlisted.get(), start, options);
  options.engine = Engine::kFused;
  CheckSame(drafts, FindDrafts(lattice, lms.unlisted.get(), start, options));
}

void CheckRandomCase(std::uint32_t seed, std::uint32_t vocab_size, std::uint32_t most_used) {
  Random random(seed);
  const bool exact = Below(&random, 2) == 0;
  const std::uint32_t used = 4 + Below(&random, most_used - 3);
  const int order = 1 + static_cast<int>(seed % (used > 20 ? 4 : 5));
  const int ngrams = static_cast<int>(Below(&random, used > 20 ? 3000 : 100));
  const Pair lms = RandomPair(&random, vocab_size, used, order, ngrams, exact);
  Tokens text = RandomText(&random, used, 60);
  CHECK(ScoreText(*lms.unlisted, text, true, true) == ScoreText(*lms.listed, text, true, true));
  text = RandomText(&random, used + kBeyond, 60);
  for (TokenId& token : text) token = IdOf(token, vocab_size, used);
  for (int trial = 0; trial < 2; ++trial) {
    const auto tokens = static_cast<std::ptrdiff_t>(Below(&random, 6));
    const Tokens context(text.end() - tokens, text.end());
    const std::uint32_t widths[] = {4, 16, 17, 33, 70};
    const double alphas[] = {1.0, 0.3, 0.0, -1.25, 16.0};
    const double alpha = alphas[Below(&random, 5)];
    const bool bos = Below(&random, 2) == 0;
    Sausage lattice;
    const Sausage numbers = RandomLattice(&random, used + kBeyond, widths[Below(&random, 5)]);
    for (std::size_t slot = 0; slot < numbers.num_slots(); ++slot) {
      Tokens ids(numbers.token_ids(slot).begin(), numbers.token_ids(slot).end());
      for (TokenId& id : ids) id = IdOf(id, vocab_size, used);
      lattice.AddSlot(ids, numbers.scores(slot));
    }
    INFO("seed ", seed, " trial ", trial, " order ", order, " alpha ", alpha);
    CheckOpenFst(lms, lattice, context, bos, alpha);
    if (Below(&random, 3) == 0) lattice = WithTransitions(&random, lattice);
    for (const std::string& name : FusedInstructionSets()) {
      SetFusedInstructionSet(name);
      INFO("instruction set ", name);
      CheckSearches(lms, lattice, context, bos, alpha, seed);
    }
    SetFusedInstructionSet("");
  }
}

TEST_CASE("unlisted: searches with few symbols, many n-grams of <unk>") {
  for (std::uint32_t seed = 0; seed < 100; ++seed) CheckRandomCase(seed, 12, 12);
}

TEST_CASE("unlisted: wide slots, long runs, 2-byte and 4-byte keys") {
  for (std::uint32_t seed = 1000; seed < 1040; ++seed) CheckRandomCase(seed, 200, 150);
  for (std::uint32_t seed = 2000; seed < 2004; ++seed) CheckRandomCase(seed, 70000, 150);
}

TEST_CASE("unlisted: a file keeps them, and a file without that section has none") {
  TemporaryFolder folder;
  Random random(1);
  const Pair lms = RandomPair(&random, 12, 12, 3, 60, false);
  REQUIRE(lms.unlisted->vocabulary().unlisted != nullptr);
  SaveLm(*lms.unlisted, folder.File("lm"));
  const Lm loaded = LoadLm(folder.path() + "/lm", true);
  REQUIRE(loaded->vocabulary().unlisted != nullptr);
  CHECK(*loaded->vocabulary().unlisted == *lms.unlisted->vocabulary().unlisted);
  const Tokens text = RandomText(&random, 12, 60);
  CHECK(ScoreText(*loaded, text, true, true) == ScoreText(*lms.listed, text, true, true));
  SaveLm(*lms.listed, folder.File("listed"));
  CHECK(LoadLm(folder.path() + "/listed", true)->vocabulary().unlisted == nullptr);
}

TEST_CASE("unlisted: a mixture has those of all its LMs, and their probabilities") {
  Random random(2);
  const Pair lms = RandomPair(&random, 12, 12, 3, 60, false);
  const Tokens text = RandomText(&random, 12, 60);
  const auto mix = [&](const Lm& first, const Lm& second) {
    return BackoffLm::FromTrie(InterpolateLms({first, second}, {0.5, 0.5}, 1));
  };
  const Lm both = mix(lms.unlisted, lms.unlisted);
  Trie listed = UnpackLm(*lms.unlisted);
  listed.vocabulary.unlisted = nullptr;
  const Lm one = mix(BackoffLm::FromTrie(listed), lms.unlisted);
  CHECK(one->vocabulary().unlisted == nullptr);
  REQUIRE(both->vocabulary().unlisted != nullptr);
  CHECK(*both->vocabulary().unlisted == *lms.unlisted->vocabulary().unlisted);
  const Vocabulary& vocabulary = both->vocabulary();
  for (Symbol word = 0; word < 12; ++word) {
    const Symbol known = vocabulary.is_unlisted(word) ? vocabulary.unk : word;
    CHECK(both->StateOf({&word, 1}) == both->StateOf({&known, 1}));
    CHECK(both->StateOf({&word, 1}).length == lms.listed->StateOf({&word, 1}).length);
    CHECK(one->StateOf({&word, 1}).length == lms.listed->StateOf({&word, 1}).length);
  }
}

}  // namespace
}  // namespace lattice_bpd
