#include "lattice_bpd/mixture/mixture_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/fused_exponentials.h"
#include "lattice_bpd/mixture/text_successors.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kMaxKeys = 1 << 15;  // of predictions: 6 MB at most
constexpr double kUnsupported = 3e-3;      // of a head's candidate: that the other sources give it

}  // namespace

MixtureText::MixtureText(std::shared_ptr<const Mixture> mixture)
    : mixture_(std::move(mixture)),
      text_(kMaxOrder),
      predictions_(kMaxKeys),
      theta_(mixture_->theta()) {}

void MixtureText::Append(Span<std::int64_t> token_ids) {
  for (const std::int64_t token : token_ids) {
    CheckToken(token, mixture_->options().vocab_size, "MixtureText");
  }
  if (is_searched_) Learn(token_ids);
  if (!token_ids.empty()) is_searched_ = false;
  for (const std::int64_t token : token_ids) text_.Append(static_cast<Symbol>(token));
}

LastTokens MixtureText::LastOf(std::size_t length) const {
  LastTokens last;
  for (std::size_t at = length - std::min<std::size_t>(length, kPredictionLength); at < length;
       ++at) {
    last = last.Then(TokenAt(static_cast<std::uint32_t>(at)));
  }
  return last;
}

void MixtureText::AddPredictions(std::size_t length, const PrefixTree& tree,
                                 Span<TokenId> token_ids, Span<float> log_probs) {
  const std::size_t nodes = tree.size(), k = nodes == 0 ? 0 : token_ids.size() / nodes;
  if (length == 0 || length > size() || k == 0 || token_ids.size() != k * nodes ||
      log_probs.size() != token_ids.size() ||
      tree.node(0).token_id != TokenAt(static_cast<std::uint32_t>(length - 1))) {
    throw ValueError(StrCat("MixtureText: ", token_ids.size(), " predictions for a tree of ", nodes,
                            " nodes after ", length, " tokens; expected k for each node of a tree",
                            " whose node 0 is the last of these tokens"));
  }
  TextStore* store = mixture_->options().store.get();
  std::unique_lock<std::shared_mutex> lock;
  if (store != nullptr) lock = std::unique_lock(store->mutex());
  std::vector<LastTokens> last(nodes);
  for (std::size_t node = 0; node < nodes; ++node) {
    const DraftNode& at = tree.node(static_cast<NodeNumber>(node));
    last[node] =
        node == 0
            ? LastOf(length)
            : last[static_cast<std::size_t>(at.parent)].Then(static_cast<Symbol>(at.token_id));
    const std::size_t row = node * k;
    if (token_ids[row] < 0) continue;
    Prediction prediction;
    for (std::size_t i = 0; i < std::min<std::size_t>(k, kPredictions); ++i) {
      CheckToken(token_ids[row + i], mixture_->options().vocab_size, "MixtureText: predictions");
      prediction.tokens[i] = static_cast<Symbol>(token_ids[row + i]);
      prediction.probs[i] = std::exp(log_probs[row + i]);
    }
    predictions_.Add(last[node], prediction);
    if (store != nullptr) store->mutable_predictions()->Add(last[node], prediction);
  }
}

void MixtureText::Learn(Span<std::int64_t> token_ids) {
  const double rate = mixture_->options().learning_rate;
  NodeNumber node = 0;
  for (const std::int64_t token : token_ids) {
    const std::int32_t index = expansion_of_node_[static_cast<std::size_t>(node)];
    if (index < 0) return;
    const Expansion& expansion = expansions_[static_cast<std::size_t>(index)];
    SourceValues probs = {}, sums = {};
    bool is_known = false;
    for (std::uint32_t i = expansion.begin; i < expansion.end; ++i) {
      const auto source = static_cast<std::size_t>(proposals_[i].source);
      sums[source] += proposals_[i].prob;
      if (proposals_[i].token != static_cast<Symbol>(token)) continue;
      probs[source] += proposals_[i].prob;
      is_known = true;
    }
    for (std::size_t s = 0; !is_known && s < kMaxSources; ++s) {
      if (expansion.inputs.is_active[s]) probs[s] = std::max(1.0 - sums[s], 0.0);  // "none": 1
    }
    if (keeps_examples_) examples_.push_back({expansion.inputs, probs});
    if (rate > 0.0) {
      UpdateGates(mixture_->layout(), expansion.inputs, expansion.gates, probs, rate, &theta_);
    }
    node = tree_.Child(node, token);
    if (node == kNoParent) return;
  }
}

LmState MixtureText::AdvanceLm(const BackoffLm& lm, const LmState& state, Symbol token) const {
  return token < lm.vocabulary().vocab_size ? lm.Query(state, token).next : LmState();
}

MixtureText::State MixtureText::StateOfText() const {
  State state;
  const std::uint32_t size = num_tokens();
  for (std::size_t i = 0; i < mixture_->lms().size(); ++i) {
    const BackoffLm& lm = mixture_->lms()[i].lm();
    const std::uint32_t wanted = static_cast<std::uint32_t>(lm.order()) - 1;
    const std::uint32_t begin = size - std::min(size, wanted);
    LmState& of_lm = state.lms[i];
    if (size < wanted) of_lm = lm.Query(of_lm, lm.vocabulary().bos).next;
    for (std::uint32_t at = begin; at < size; ++at) of_lm = AdvanceLm(lm, of_lm, TokenAt(at));
  }
  const Mixture::Options& options = mixture_->options();
  if (options.has_text) state.text = text_.StateOfText();
  if (options.store != nullptr) {
    TokenId last[kMaxOrder];
    const std::uint32_t count = std::min<std::uint32_t>(size, kMaxOrder - 1);
    for (std::uint32_t i = 0; i < count; ++i) {
      last[i] = static_cast<TokenId>(TokenAt(size - count + i));
    }
    state.store = options.store->counts().StateOf({last, count});
  }
  if (options.has_target) state.last = LastOf(size);
  return state;
}

MixtureText::State MixtureText::Advance(const State& state, Symbol token) const {
  State next;
  for (std::size_t i = 0; i < mixture_->lms().size(); ++i) {
    next.lms[i] = AdvanceLm(mixture_->lms()[i].lm(), state.lms[i], token);
  }
  const Mixture::Options& options = mixture_->options();
  if (options.has_text) next.text = text_.Advance(state.text, token);
  if (options.store != nullptr) next.store = options.store->counts().Advance(state.store, token);
  next.last = state.last.Then(token);
  return next;
}

void MixtureText::ProposeOfHeads(int source, int slot, Symbol token, const HeadCandidates& heads,
                                 std::uint32_t begin, int num_others, SourceMatch* match) {
  if (slot >= heads.num_slots) return;
  const auto k = static_cast<std::size_t>(heads.top_k);
  const std::size_t row = static_cast<std::size_t>(slot) * k;
  const TokenId* token_ids = heads.token_ids + row;
  const double* probs = head_probs_.data() + row;
  if (heads.transitions != nullptr) {
    const float* arcs = nullptr;  // from the candidate of the slot before
    for (std::size_t a = 0; slot > 0 && a < k; ++a) {
      if (static_cast<Symbol>(token_ids[a - k]) == token) {
        arcs = heads.transitions + (static_cast<std::size_t>(slot - 1) * k + a) * k;
      }
    }
    const std::size_t padded = (k + 7) / 8 * 8;
    head_scratch_.assign(2 * padded, -std::numeric_limits<double>::infinity());
    double greatest = -std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < k; ++c) {
      const float score = heads.log_probs[row + c];
      if (score == -std::numeric_limits<float>::infinity()) continue;
      head_scratch_[c] = double{score} + (arcs == nullptr ? 0.0 : double{arcs[c]});
      greatest = std::max(greatest, head_scratch_[c]);
    }
    if (greatest == -std::numeric_limits<double>::infinity()) return;
    double* normalized = head_scratch_.data() + padded;
    TakeExponentials(head_scratch_.data(), static_cast<std::uint32_t>(padded), greatest,
                     normalized);
    double sum = 0.0;
    for (std::size_t c = 0; c < k; ++c) sum += normalized[c];
    for (std::size_t c = 0; c < k; ++c) normalized[c] /= sum;
    probs = normalized;
  } else if (num_others > 0) {
    // Slots know nothing of each other. So that drafts are consistent, probabilities are multiplied
    // by the root of their mean in the other sources; their sum stays.
    double before = 0.0, after = 0.0;
    head_scratch_.assign(k, 0.0);
    std::uint64_t filter = 0;  // most tokens of the others are no candidates
    for (std::size_t c = 0; c < k; ++c) filter |= std::uint64_t{1} << (token_ids[c] & 63);
    for (std::size_t i = begin; i < proposals_.size(); ++i) {
      const Symbol other = proposals_[i].token;
      if ((filter >> (other & 63) & 1) == 0) continue;
      for (std::size_t c = 0; c < k; ++c) {
        if (static_cast<Symbol>(token_ids[c]) == other) head_scratch_[c] += proposals_[i].prob;
      }
    }
    for (std::size_t c = 0; c < k; ++c) {
      head_scratch_[c] = probs[c] * std::sqrt(head_scratch_[c] / num_others + kUnsupported);
      before += probs[c], after += head_scratch_[c];
    }
    for (double& prob : head_scratch_) prob *= after > 0.0 ? before / after : 0.0;
    probs = head_scratch_.data();
  }
  for (std::size_t c = 0; c < k; ++c) {
    if (!(probs[c] > 0.0)) continue;
    proposals_.push_back(
        {static_cast<Symbol>(token_ids[c]), static_cast<std::int8_t>(source), probs[c]});
    match->top = std::max(match->top, probs[c]);
    match->is_active = true;
  }
}

void MixtureText::Propose(const State& state, int depth, Symbol token, const HeadCandidates& heads,
                          std::array<SourceMatch, kMaxSources>* matches) {
  Successor found[kMaxSuccessors];
  const Mixture::Options& options = mixture_->options();
  const std::vector<SourceKind>& kinds = mixture_->layout().sources();
  const auto begin = static_cast<std::uint32_t>(proposals_.size());
  int of_heads = -1, num_others = 0;
  std::size_t lm = 0;
  for (int source = 0; source < mixture_->layout().num_sources(); ++source) {
    SourceMatch& match = (*matches)[static_cast<std::size_t>(source)];
    int count = 0;
    switch (kinds[static_cast<std::size_t>(source)]) {
      case SourceKind::kHeads:
        of_heads = source;
        break;
      case SourceKind::kLm:
        count = mixture_->lms()[lm].Find(state.lms[lm], options.vocab_size, found, &match.length,
                                         &match.top);
        match.is_active = count > 0;
        ++lm;
        break;
      case SourceKind::kText:
        count = FindTextSuccessors(text_, state.text, found, &match);
        break;
      case SourceKind::kStore:
        count = FindTextSuccessors(options.store->counts(), state.store, found, &match);
        break;
      case SourceKind::kTarget:
        count = predictions_.Find(
            state.last, options.store == nullptr ? nullptr : &options.store->predictions(), found,
            &match);
        break;
    }
    num_others += count > 0;
    for (int i = 0; i < count; ++i) {
      if (found[i].token >= options.vocab_size) continue;
      proposals_.push_back({found[i].token, static_cast<std::int8_t>(source), found[i].prob});
    }
  }
  if (of_heads < 0) return;
  ProposeOfHeads(of_heads, depth, token, heads, begin, num_others,
                 &(*matches)[static_cast<std::size_t>(of_heads)]);
}

// What remains of a source is divided by the share that the constraint allows, as far as it is
// known: the tokens that a source leaves out count as allowed.
void MixtureText::Mask(NodeNumber node, const AllowTokens& allow, std::uint32_t begin,
                       std::array<SourceMatch, kMaxSources>* matches) {
  std::vector<std::int64_t> token_ids;
  for (std::size_t i = begin; i < proposals_.size(); ++i) token_ids.push_back(proposals_[i].token);
  const std::vector<bool> allowed = allow(node, tree_, token_ids);
  double forbidden[kMaxSources] = {};
  std::size_t kept = begin;
  for (std::size_t i = begin; i < proposals_.size(); ++i) {
    if (allowed[i - begin]) {
      proposals_[kept++] = proposals_[i];
    } else {
      forbidden[proposals_[i].source] += proposals_[i].prob;
    }
  }
  proposals_.resize(kept);
  for (SourceMatch& match : *matches) match.is_active = false, match.top = 0.0;
  for (std::size_t i = begin; i < kept; ++i) {
    Proposal& proposal = proposals_[i];
    const double left = 1.0 - forbidden[proposal.source];
    if (left > 0.0) proposal.prob = std::min(proposal.prob / left, 1.0);
    SourceMatch& match = (*matches)[static_cast<std::size_t>(proposal.source)];
    match.is_active = true;
    match.top = std::max(match.top, proposal.prob);
  }
}

void MixtureText::Expand(NodeNumber node, const HeadCandidates& heads, const SearchLimits& limits) {
  const DraftNode& at = tree_.node(node);
  Expansion expansion;
  expansion.begin = static_cast<std::uint32_t>(proposals_.size());
  std::array<SourceMatch, kMaxSources> matches;
  Propose(states_[static_cast<std::size_t>(node)], at.depth, static_cast<Symbol>(at.token_id),
          heads, &matches);
  if (limits.allow != nullptr) Mask(node, *limits.allow, expansion.begin, &matches);
  expansion.end = static_cast<std::uint32_t>(proposals_.size());
  expansion.inputs = mixture_->layout().Describe(at.depth, matches);
  expansion.gates = ComputeGates(mixture_->layout(), theta_, expansion.inputs);
  expansion_of_node_[static_cast<std::size_t>(node)] =
      static_cast<std::int32_t>(expansions_.size());
  expansions_.push_back(expansion);

  merged_.clear();
  std::size_t size = 64;
  while (size < 2 * (proposals_.size() - expansion.begin)) size *= 2;
  merge_table_.assign(size, 0);  // indices into merged_, plus 1
  for (std::size_t i = expansion.begin; i < expansion.end; ++i) {
    const Proposal& proposal = proposals_[i];
    const double prob = expansion.gates[static_cast<std::size_t>(proposal.source)] * proposal.prob;
    std::size_t entry = (proposal.token * 0x9e3779b9u >> 8) & (size - 1);
    while (merge_table_[entry] != 0 && merged_[merge_table_[entry] - 1].token != proposal.token) {
      entry = (entry + 1) & (size - 1);
    }
    if (merge_table_[entry] == 0) {
      merged_.push_back({proposal.token, prob});
      merge_table_[entry] = static_cast<std::uint32_t>(merged_.size());
    } else {
      merged_[merge_table_[entry] - 1].prob += prob;
    }
  }
}

std::shared_lock<std::shared_mutex> MixtureText::Begin(const HeadCandidates& heads,
                                                       const SearchLimits& limits) {
  const TextStore* store = mixture_->options().store.get();
  std::shared_lock<std::shared_mutex> lock;
  if (store != nullptr) lock = std::shared_lock(store->mutex());
  if (text_.text().empty()) throw ValueError("MixtureText: no tokens; append the prompt first");
  if (limits.max_nodes < 0 || limits.max_nodes > kMaxMixtureNodes) {
    throw ValueError(
        StrCat("MixtureText: max_nodes is ", limits.max_nodes, "; expected 0..", kMaxMixtureNodes));
  }
  states_.clear();
  expansions_.clear();
  proposals_.clear();
  expansion_of_node_.clear();
  frontier_.clear();
  worst_wanted_ = {0.0, 0, 0};
  is_searched_ = true;
  tree_ = PrefixTree();
  AddNode(kNoParent, TokenAt(num_tokens() - 1), 1.0);
  states_[0] = StateOfText();
  if (!mixture_->options().has_heads || heads.num_slots == 0) return lock;
  const std::size_t cells = static_cast<std::size_t>(heads.num_slots) * heads.top_k;
  for (std::size_t i = 0; i < cells; ++i) {
    CheckToken(heads.token_ids[i], mixture_->options().vocab_size, "MixtureText: heads");
    if (!(heads.log_probs[i] < std::numeric_limits<float>::infinity())) {
      throw ValueError("MixtureText: a score of the heads is NaN or +inf");
    }
  }
  if (heads.transitions != nullptr) return lock;
  const std::size_t padded = (cells + 7) / 8 * 8;
  head_scratch_.assign(padded, 0.0);
  head_probs_.resize(padded);
  for (std::size_t i = 0; i < cells; ++i) head_scratch_[i] = heads.log_probs[i];
  TakeExponentials(head_scratch_.data(), static_cast<std::uint32_t>(padded), 0.0,
                   head_probs_.data());
  return lock;
}

NodeNumber MixtureText::AddNode(NodeNumber parent, Symbol token, double prob) {
  const NodeNumber node = tree_.Add(
      parent, token, parent == kNoParent ? kUnknownLogProb : static_cast<float>(std::log(prob)));
  states_.emplace_back();
  expansion_of_node_.push_back(-1);
  return node;
}

std::vector<Successor> MixtureText::DistributionAfter(NodeNumber node) const {
  std::vector<Successor> out;
  const std::int32_t index = expansion_of_node_.at(static_cast<std::size_t>(node));
  if (index < 0) return out;
  const Expansion& expansion = expansions_[static_cast<std::size_t>(index)];
  for (std::uint32_t i = expansion.begin; i < expansion.end; ++i) {
    const Proposal& proposal = proposals_[i];
    const double prob = expansion.gates[static_cast<std::size_t>(proposal.source)] * proposal.prob;
    if (prob > 0.0) out.push_back({proposal.token, prob});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Successor& a, const Successor& b) { return a.token < b.token; });
  std::size_t kept = 0;
  for (const Successor& next : out) {
    if (kept > 0 && out[kept - 1].token == next.token) {
      out[kept - 1].prob += next.prob;
    } else {
      out[kept++] = next;
    }
  }
  out.resize(kept);
  double sum = 0.0;
  for (const Successor& next : out) sum += next.prob;
  for (Successor& next : out) next.prob /= sum;
  return out;
}

}  // namespace lattice_bpd
