// A text, and the drafts of a mixture for it.
#ifndef LATTICE_BPD_MIXTURE_MIXTURE_TEXT_H_
#define LATTICE_BPD_MIXTURE_MIXTURE_TEXT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/lm/context_trie.h"
#include "lattice_bpd/mixture/mixture.h"
#include "lattice_bpd/mixture/prediction_table.h"
#include "lattice_bpd/verify/prefix_tree.h"

namespace lattice_bpd {

constexpr int kMaxMixtureNodes = 1 << 12;

// The heads' candidates for one text, (slots, top_k) row by row; borrowed.
struct HeadCandidates {
  const TokenId* token_ids = nullptr;
  const float* log_probs = nullptr;  // natural logs; -inf masks
  // (slots - 1, top_k, top_k): scores of a slot's candidates after those of the slot before, or
  // null
  const float* transitions = nullptr;
  int num_slots = 0;
  int top_k = 0;
};

// Which of the tokens may follow a node; called for each node that is extended, parents first.
using AllowTokens = std::function<std::vector<bool>(NodeNumber node, const PrefixTree& tree,
                                                    Span<std::int64_t> token_ids)>;

// The noise of a target that samples (keyed_noise.h), given which its samples are certain: q of
// each token becomes exp(sharpness * (ln q + noise)), normalized to what q summed to.
struct KnownNoise {
  std::uint64_t key = 0;
  std::uint64_t position = 0;  // of the token after the text
  double sharpness = 0.5;
};

struct SearchLimits {
  int max_nodes = 0;
  int max_depth = 0;
  bool is_chain = false;
  // (max_nodes + 1,) costs of a call that reads 1, 2, .. tokens: the search ends where no larger
  // tree can have a greater ratio of expected tokens to cost. Empty: the tree is as large as it may
  // be.
  Span<double> costs;
  const AllowTokens* allow = nullptr;
  const KnownNoise* noise = nullptr;
};

// A node whose next tokens are known.
struct Expansion {
  GateInputs inputs;
  SourceValues gates;
  std::uint32_t begin, end;  // of the proposals
};

// An example for fitting gates.
struct GateExample {
  GateInputs inputs;
  // Of the true token by source. If none proposed it: what each source leaves to other tokens, so
  // that a source that is often wrong loses weight.
  SourceValues probs;
};

// A text, and what the last search of its drafts knew.
class MixtureText {
 public:
  explicit MixtureText(std::shared_ptr<const Mixture> mixture);

  // Appends decoded tokens. Those that follow the last search's context teach the gates. Throws
  // ValueError for ids outside the vocabulary.
  void Append(Span<std::int64_t> token_ids);

  // Adds what the target predicts after each node of a tree that it has read, when the text had
  // `length` tokens, node 0 being the last of them: k tokens each with natural logs of their
  // probabilities, best first. A row that begins with a negative token is left out. Throws
  // ValueError for another text, or ids outside the vocabulary.
  void AddPredictions(std::size_t length, const PrefixTree& tree, Span<TokenId> token_ids,
                      Span<float> log_probs);

  // The tree of the most probable prefixes after the text, in order of decreasing probability. The
  // last token of the text is node 0. Throws ValueError for an empty text or limits out of range.
  PrefixTree Search(const HeadCandidates& heads, const SearchLimits& limits);

  // A path sampled from q, normalized after each node over the tokens it knows; ends after
  // max_nodes tokens, or where the path's probability falls below `least`. The noise is a function
  // of key, position and token (keyed_noise.h), so equal keys sample equal paths. DistributionAfter
  // has what each node's child was sampled from.
  PrefixTree Sample(const HeadCandidates& heads, const SearchLimits& limits, double least,
                    std::uint64_t key);

  // Tokens and probabilities that could follow a node of the last search, by increasing token;
  // empty where the node was not extended.
  std::vector<Successor> DistributionAfter(NodeNumber node) const;

  std::size_t size() const { return text_.text().size(); }
  const GateWeights& theta() const { return theta_; }
  const Mixture& mixture() const { return *mixture_; }

  // Keep examples from now on.
  void KeepExamples() { keeps_examples_ = true; }
  const std::vector<GateExample>& examples() const { return examples_; }

 private:
  struct Proposal {
    Symbol token;
    std::int8_t source;
    double prob;
  };
  struct State {
    LmState lms[kMaxMixtureLms];
    ContextState text;
    ContextState store;
    LastTokens last;
  };

  std::uint32_t num_tokens() const { return static_cast<std::uint32_t>(text_.text().size()); }
  Symbol TokenAt(std::uint32_t position) const { return text_.text()[position]; }
  State StateOfText() const;
  LastTokens LastOf(std::size_t length) const;  // of the text's first `length` tokens
  State Advance(const State& state, Symbol token) const;
  LmState AdvanceLm(const BackoffLm& lm, const LmState& state, Symbol token) const;
  void Propose(const State& state, int depth, Symbol token, const HeadCandidates& heads,
               std::array<SourceMatch, kMaxSources>* matches);
  // `begin`: of the proposals of the other sources, `num_others` of which have some.
  void ProposeOfHeads(int source, int slot, Symbol token, const HeadCandidates& heads,
                      std::uint32_t begin, int num_others, SourceMatch* match);
  void Mask(NodeNumber node, const AllowTokens& allow, std::uint32_t begin,
            std::array<SourceMatch, kMaxSources>* matches);
  // Fills merged_ with the tokens after a node and their q.
  void Expand(NodeNumber node, const HeadCandidates& heads, const SearchLimits& limits);
  void AddNoise(const KnownNoise& noise, int depth);
  void Learn(Span<std::int64_t> token_ids);
  // Begins a search; the store does not change until the lock is gone.
  std::shared_lock<std::shared_mutex> Begin(const HeadCandidates& heads,
                                            const SearchLimits& limits);
  NodeNumber AddNode(NodeNumber parent, Symbol token, double prob);

  std::shared_ptr<const Mixture> mixture_;
  ContextTrie text_;
  PredictionTable predictions_;
  GateWeights theta_;
  std::vector<GateExample> examples_;
  bool keeps_examples_ = false;

  // Of the last search; kept to allocate nothing in the next.
  PrefixTree tree_;
  bool is_searched_ = false;   // the last search was after this text
  std::vector<State> states_;  // of the tree's nodes
  std::vector<Expansion> expansions_;
  std::vector<Proposal> proposals_;
  std::vector<Successor> merged_;  // the tokens after the node that was extended last
  std::vector<std::uint32_t> merge_table_;
  std::vector<double> head_probs_, head_scratch_;
  std::vector<std::int32_t> expansion_of_node_;  // -1: not extended
  struct Candidate {
    double prob;
    NodeNumber parent;
    Symbol token;
  };
  static bool IsWorse(const Candidate& a, const Candidate& b);
  // Adds the tokens after a node to the frontier, of which only the best `wanted` can be reached.
  void AddToFrontier(NodeNumber node, double prob, std::size_t wanted);
  std::vector<Candidate> frontier_;  // a heap
  Candidate worst_wanted_;           // no worse one can be reached
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_MIXTURE_TEXT_H_
