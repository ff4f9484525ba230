// Token ids that an ARPA file lacks, or that only the model has, are <unk>: scores and searches are
// those of the same text and lattice with <unk> in their place, and both engines agree.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lattice_bpd/draft/find_chain.h"
#include "lattice_bpd/draft/find_drafts.h"
#include "lattice_bpd/draft/find_tree.h"
#include "lattice_bpd/draft/fused_engine.h"
#include "lattice_bpd/lm/lm_file.h"
#include "lattice_bpd/lm/score_text.h"
#include "lattice_bpd/train/interpolate.h"
#include "random_lattices.h"

namespace lattice_bpd {
namespace {

using Tokens = std::vector<TokenId>;
using Lm = std::shared_ptr<const BackoffLm>;

constexpr Symbol kUnk = 0;            // <unk> is a token id, so that texts can name it
constexpr std::uint32_t kBeyond = 4;  // token ids that the LM lacks

// Every third of the first `used` token ids is unlisted; n-grams over the others and <unk>.
Lm RandomUnlistedLm(Random* random, std::uint32_t vocab_size, std::uint32_t used, int order,
                    int ngrams) {
  Vocabulary vocabulary = MakeVocabulary(vocab_size, {{}, {}, kUnk});
  std::vector<std::uint8_t> bits(BytesOfBits(vocab_size), 0);
  for (Symbol id = 3; id < used; id += 3) bits[id / 8] |= 1 << id % 8;
  vocabulary.unlisted = std::make_shared<const std::vector<std::uint8_t>>(std::move(bits));
  std::set<std::vector<Symbol>> known;
  for (int i = 0; i < ngrams && order > 1; ++i) {
    std::vector<Symbol> ngram(2 + Below(random, static_cast<std::uint32_t>(order) - 1));
    for (Symbol& symbol : ngram) {
      symbol = std::min(Below(random, used), Below(random, used));
      if (vocabulary.is_unlisted(symbol)) symbol = kUnk;
    }
    if (Below(random, 5) == 0) ngram[0] = vocabulary.bos;
    if (Below(random, 5) == 0) ngram.back() = vocabulary.eos;
    for (std::size_t size = 2; size <= ngram.size(); ++size) {
      known.insert({ngram.begin(), ngram.begin() + static_cast<std::ptrdiff_t>(size)});
    }
  }
  std::vector<Ngram> listed;
  for (Symbol symbol = 0; symbol < vocabulary.num_symbols(); ++symbol) {
    listed.push_back({{symbol}, Sample(random, false), Sample(random, false)});
    if (vocabulary.is_unlisted(symbol)) listed.back() = {{symbol}, listed[kUnk].log_prob, 0.0f};
  }
  for (const std::vector<Symbol>& ngram : known) {
    listed.push_back({ngram, Sample(random, false), Sample(random, false)});
  }
  return BackoffLm::FromTrie(BuildTrie(vocabulary, ListsOf(order, listed)));
}

// Of `used` + kBeyond numbers: a token id in use, or one beyond those of the LM.
TokenId IdOf(TokenId number, const BackoffLm& lm, std::uint32_t used) {
  const auto symbol = static_cast<Symbol>(number);
  return static_cast<TokenId>(symbol < used ? symbol : lm.vocabulary().vocab_size + symbol - used);
}

// The token ids, <unk> in the place of those that are.
Tokens Listed(const BackoffLm& lm, Tokens tokens) {
  for (TokenId& token : tokens) {
    const auto symbol = static_cast<Symbol>(token);
    const bool is_unk = symbol >= lm.vocabulary().vocab_size || lm.vocabulary().is_unlisted(symbol);
    if (is_unk) token = static_cast<TokenId>(kUnk);
  }
  return tokens;
}

// The lattice over the LM's token ids and others; with `listed`, <unk> in their place, once a slot.
Sausage LatticeOf(const Sausage& numbers, const BackoffLm& lm, std::uint32_t used, bool one_unk,
                  bool listed) {
  Sausage lattice;
  for (std::size_t slot = 0; slot < numbers.num_slots(); ++slot) {
    Tokens ids;
    std::vector<float> scores;
    bool has_unk = false;
    for (std::size_t i = 0; i < numbers.width(slot); ++i) {
      const TokenId id = IdOf(numbers.token_ids(slot)[i], lm, used);
      const TokenId known = Listed(lm, {id})[0];
      if (one_unk && known == static_cast<TokenId>(kUnk) && has_unk) continue;
      has_unk = has_unk || known == static_cast<TokenId>(kUnk);
      ids.push_back(listed ? known : id);
      const float own = std::sin(static_cast<float>(71 * slot + i));  // no two paths tie
      scores.push_back(numbers.scores(slot)[i] + own);
    }
    lattice.AddSlot(ids, scores);
  }
  return lattice;
}

void CheckSame(const BackoffLm& lm, const std::vector<TreeNode>& nodes,
               const std::vector<TreeNode>& expected) {
  REQUIRE(nodes.size() == expected.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    CHECK(Listed(lm, {nodes[i].token_id})[0] == expected[i].token_id);
    CHECK(nodes[i].parent == expected[i].parent);
    CHECK(nodes[i].log_prob == expected[i].log_prob);
  }
}

void CheckSearches(const BackoffLm& lm, const Sausage& numbers, std::uint32_t used,
                   const Tokens& context, double alpha) {
  const LmState start = lm.StateOfContext(context, true);
  const LmState same_start = lm.StateOfContext(Listed(lm, context), true);
  const Sausage some = LatticeOf(numbers, lm, used, true, false);
  const Sausage same = LatticeOf(numbers, lm, used, true, true);
  const Sausage all = LatticeOf(numbers, lm, used, false, false);
  for (const Normalization normalization : {Normalization::kGlobal, Normalization::kLocal}) {
    const DraftOptions options = {20, alpha, Engine::kFused, normalization};
    const DraftList drafts = FindDrafts(some, &lm, start, options);
    const DraftList expected = FindDrafts(same, &lm, same_start, options);
    CHECK(Listed(lm, drafts.token_ids) == expected.token_ids);
    CHECK(drafts.scores == expected.scores);
    CheckSame(lm, FindTree(some, &lm, start, alpha, 40, normalization),
              FindTree(same, &lm, same_start, alpha, 40, normalization));
    const ChainOptions chain = {alpha, ChainObjective::kAcceptLength, normalization};
    CheckSame(lm, FindChain(some, &lm, start, chain), FindChain(same, &lm, same_start, chain));
  }
  const DraftList fused = FindDrafts(all, &lm, start, {20, alpha, Engine::kFused});
  const DraftList openfst = FindDrafts(all, &lm, start, {20, alpha, Engine::kOpenFst});
  CHECK(fused.token_ids == openfst.token_ids);
  CHECK(fused.scores == openfst.scores);
}

TEST_CASE("unlisted: scores and searches are those with <unk> in their place") {
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    Random random(seed);
    const bool is_wide = seed % 3 == 0;
    const std::uint32_t vocab_size = seed % 30 == 0 ? 70000 : is_wide ? 200 : 12;
    const std::uint32_t used = is_wide ? 150 : 12;
    const int order = 1 + static_cast<int>(seed % 5);
    const Lm lm = RandomUnlistedLm(&random, vocab_size, used, order, is_wide ? 3000 : 100);
    Tokens text = RandomText(&random, used + kBeyond, 60);
    for (TokenId& token : text) token = IdOf(token, *lm, used);
    Tokens in_lm = RandomText(&random, used, 60);
    CHECK(ScoreText(*lm, in_lm, true, true) == ScoreText(*lm, Listed(*lm, in_lm), true, true));
    for (Symbol word = 0; word < used; ++word) {
      const Symbol known = lm->vocabulary().ListedOrUnk(word);
      CHECK(lm->StateOf({&word, 1}) == lm->StateOf({&known, 1}));
    }
    const Tokens context(text.end() - static_cast<std::ptrdiff_t>(Below(&random, 6)), text.end());
    const Sausage numbers = RandomLattice(&random, used + kBeyond, is_wide ? 70 : 16);
    const double alphas[] = {1.0, 0.3, -1.25, 16.0};
    for (const std::string& name : FusedInstructionSets()) {
      SetFusedInstructionSet(name);
      INFO("seed ", seed, " instruction set ", name);
      CheckSearches(*lm, numbers, used, context, alphas[seed % 4]);
    }
    SetFusedInstructionSet("");
  }
}

TEST_CASE("unlisted: files and mixtures keep them") {
  TemporaryFolder folder;
  Random random(1);
  const Lm lm = RandomUnlistedLm(&random, 12, 12, 3, 60);
  SaveLm(*lm, folder.File("lm"));
  const Lm loaded = LoadLm(folder.path() + "/lm", true);
  const Lm mixed = BackoffLm::FromTrie(InterpolateLms({lm, lm}, {0.5, 0.5}, 1));
  for (const Lm& copy : {loaded, mixed}) {
    REQUIRE(copy->vocabulary().unlisted != nullptr);
    CHECK(*copy->vocabulary().unlisted == *lm->vocabulary().unlisted);
  }
  const Tokens text = RandomText(&random, 12, 60);
  CHECK(ScoreText(*loaded, text, true, true) == ScoreText(*lm, text, true, true));
}

}  // namespace
}  // namespace lattice_bpd
