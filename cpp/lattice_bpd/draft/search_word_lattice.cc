#include "lattice_bpd/draft/search_word_lattice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/interrupts.h"
#include "lattice_bpd/base/score_grid.h"

namespace lattice_bpd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kNone = 0xffffffffu;

// A lattice state and an LM state.
struct Pair {
  std::uint32_t state;
  std::uint32_t next_of_state;  // the next pair of this lattice state
  LmState lm;
  std::uint32_t arc_begin = 0;
  std::uint32_t arc_end = 0;
  std::uint32_t rank = 0;  // in the order of expansion, which is topological
  double end_cost = kInfinity;
  double end_log_prob = 0.0;
  double best = kInfinity;  // from here to the end
};

struct PairArc {
  std::uint32_t target;
  std::uint32_t arc;  // of the WordLattice
  double cost;
  double log_prob;
};

// All pairs that a path leads to.
class PairGraph {
 public:
  PairGraph(const WordLattice& lattice, const WordScorer& scorer, const WordSearchOptions& options)
      : lattice_(lattice), scorer_(scorer), options_(options) {
    first_of_state_.assign(lattice.arc_begin.size() - 1, kNone);
    table_.assign(1 << 10, kNone);
    PairOf(lattice.start, scorer.Start(options.bos));
    for (const std::uint32_t state : lattice.order) {
      for (std::uint32_t pair = first_of_state_[state]; pair != kNone;
           pair = pairs[pair].next_of_state) {
        Expand(pair);
      }
    }
    for (std::size_t i = order_.size(); i-- > 0;) SetBest(&pairs[order_[i]]);
  }

  const WordLattice::Arc& ArcOf(const PairArc& arc) const { return lattice_.arcs[arc.arc]; }

  std::vector<Pair> pairs;  // 0 is the start
  std::vector<PairArc> arcs;

 private:
  struct Scored {
    double cost;
    double log_prob;
    LmState next;
  };

  Scored Score(const LmState& state, Symbol symbol) const {
    const LmStep step = scorer_.Step(state, symbol);
    double cost = -ToScoreGrid(options_.alpha * step.log_prob);
    for (int i = 0; i < step.num_backoffs; ++i) {
      cost -= ToScoreGrid(options_.alpha * step.backoffs[i]);
    }
    return {cost, step.TotalLogProb(), step.next};
  }

  void Expand(std::uint32_t index) {
    interrupts_.Count(64);
    const std::uint32_t state = pairs[index].state;
    const LmState lm = pairs[index].lm;
    pairs[index].rank = static_cast<std::uint32_t>(order_.size());
    order_.push_back(index);
    if (lattice_.final_costs[state] < kInfinity) {
      const Scored end = options_.eos ? Score(lm, scorer_.lm().vocabulary().eos) : Scored{};
      pairs[index].end_cost = lattice_.final_costs[state] + end.cost;
      pairs[index].end_log_prob = end.log_prob;
    }
    pairs[index].arc_begin = static_cast<std::uint32_t>(arcs.size());
    Scored scored{0.0, 0.0, lm};
    std::int32_t word = kNoWord;
    for (std::uint32_t i = lattice_.arc_begin[state]; i < lattice_.arc_begin[state + 1]; ++i) {
      const WordLattice::Arc& arc = lattice_.arcs[i];
      if (arc.word != word) {
        if (arc.symbol >= scorer_.lm().vocabulary().num_symbols()) {
          throw ValueError(StrCat("word lattice: symbol ", arc.symbol, "; expected 0..",
                                  scorer_.lm().vocabulary().num_symbols() - 1));
        }
        word = arc.word;
        scored = Score(lm, arc.symbol);
      }
      const std::uint32_t target = PairOf(arc.target, scored.next);
      arcs.push_back({target, i, arc.cost + scored.cost, scored.log_prob});
    }
    pairs[index].arc_end = static_cast<std::uint32_t>(arcs.size());
    if (arcs.size() > kMaxPairArcs) {
      throw ValueError(StrCat("word lattice: more than ", kMaxPairArcs, " arcs of the lattice ",
                              "after different LM states; prune the lattice, or take an LM of a ",
                              "lower order"));
    }
  }

  static std::uint64_t Key(const LmState& lm) {
    return lm.length == 0 ? 0 : std::uint64_t{lm.length} << 32 | lm.nodes[lm.length - 1];
  }

  static std::size_t Hash(std::uint32_t state, std::uint64_t key) {
    return ((state + 1) * 0x9e3779b97f4a7c15u ^ key) * 0xc2b2ae3d27d4eb4fu >> 24;
  }

  // The pair, which is added where it is new.
  std::uint32_t PairOf(std::uint32_t state, const LmState& lm) {
    const std::uint64_t key = Key(lm);
    std::size_t at = Hash(state, key);
    for (;; ++at) {
      const std::uint32_t pair = table_[at & (table_.size() - 1)];
      if (pair == kNone) break;
      if (pairs[pair].state == state && Key(pairs[pair].lm) == key) return pair;
    }
    const auto added = static_cast<std::uint32_t>(pairs.size());
    pairs.push_back({state, first_of_state_[state], lm});
    first_of_state_[state] = added;
    table_[at & (table_.size() - 1)] = added;
    if (2 * pairs.size() > table_.size()) Grow();
    return added;
  }

  void Grow() {
    table_.assign(2 * table_.size(), kNone);
    for (std::uint32_t pair = 0; pair < pairs.size(); ++pair) {
      std::size_t at = Hash(pairs[pair].state, Key(pairs[pair].lm));
      while (table_[at & (table_.size() - 1)] != kNone) ++at;
      table_[at & (table_.size() - 1)] = pair;
    }
  }

  void SetBest(Pair* pair) {
    pair->best = pair->end_cost;
    for (std::uint32_t i = pair->arc_begin; i < pair->arc_end; ++i) {
      pair->best = std::min(pair->best, arcs[i].cost + pairs[arcs[i].target].best);
    }
  }

  const WordLattice& lattice_;
  const WordScorer& scorer_;
  const WordSearchOptions& options_;
  std::vector<std::uint32_t> first_of_state_;
  std::vector<std::uint32_t> table_;  // open addressing: pairs by lattice and LM state
  std::vector<std::uint32_t> order_;
  InterruptCounter interrupts_;
};

// The best first search for sequences.
class SequenceSearch {
 public:
  explicit SequenceSearch(const PairGraph& graph) : graph_(graph) {}

  WordPaths Find(int num_paths) {
    WordPaths out;
    out.begins.push_back(0);
    items_.push_back({kNone, kNoWord, 0, {{0, 0.0, kNone, kNone}}});
    queue_.push({graph_.pairs[0].best, 0, kNone});
    InterruptCounter interrupts;
    while (!queue_.empty() && out.costs.size() < static_cast<std::size_t>(num_paths)) {
      const Entry entry = queue_.top();
      queue_.pop();
      interrupts.Count(1 << 8);
      if (entry.end != kNone) {
        AddPath(entry, &out);
      } else {
        Expand(entry.item);
      }
    }
    return out;
  }

 private:
  // A pair that the item's words lead to, and the arc on which its cheapest path comes there: from
  // a member of the same item for epsilon arcs, else of the parent's.
  struct Member {
    std::uint32_t pair;
    double cost;
    std::uint32_t from;  // a member
    std::uint32_t arc;   // of the graph; kNone: of the start
  };

  // A prefix of words.
  struct Item {
    std::uint32_t parent;
    std::int32_t word;
    std::uint32_t length;
    std::vector<Member> members;
  };

  // An item that is to be expanded, or its own end.
  struct Entry {
    double cost;
    std::uint32_t item;
    std::uint32_t end;  // the member whose pair ends; kNone: to be expanded
  };

  bool IsAfter(const Entry& a, const Entry& b) const {
    if (a.cost != b.cost) return a.cost > b.cost;
    return Compare(a, b) > 0;
  }

  // By words; the end of a prefix before what it begins.
  int Compare(const Entry& a, const Entry& b) const {
    std::uint32_t left = a.item, right = b.item;
    if (left == right) return (a.end == kNone) - (b.end == kNone);
    const std::uint32_t left_length = items_[left].length, right_length = items_[right].length;
    while (items_[left].length > right_length) left = items_[left].parent;
    while (items_[right].length > left_length) right = items_[right].parent;
    if (left == right) return left_length < right_length ? -1 : 1;
    while (items_[left].parent != items_[right].parent) {
      left = items_[left].parent;
      right = items_[right].parent;
    }
    return items_[left].word < items_[right].word ? -1 : 1;
  }

  // Adds the members that epsilon arcs lead to, and sorts all topologically.
  void Close(std::vector<Member>* members) {
    const auto rank = [&](const Member& member) { return graph_.pairs[member.pair].rank; };
    const auto earlier = [&](const Member& a, const Member& b) { return rank(a) < rank(b); };
    std::sort(members->begin(), members->end(), earlier);
    for (std::size_t i = 0; i < members->size(); ++i) {
      const Pair& pair = graph_.pairs[(*members)[i].pair];
      for (std::uint32_t a = pair.arc_begin; a < pair.arc_end; ++a) {
        const PairArc& arc = graph_.arcs[a];
        if (graph_.ArcOf(arc).word != kNoWord) break;  // arcs are sorted by word
        const Member member{arc.target, (*members)[i].cost + arc.cost,
                            static_cast<std::uint32_t>(i), a};
        const auto at = std::lower_bound(members->begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                         members->end(), member, earlier);
        if (at != members->end() && at->pair == member.pair) {
          if (member.cost < at->cost) *at = member;
          continue;
        }
        // Members before it have no back-pointers to positions that this moves.
        members->insert(at, member);
      }
    }
  }

  void Expand(std::uint32_t index) {
    std::vector<Member> members = std::move(items_[index].members);
    Close(&members);
    found_.clear();
    double end_cost = kInfinity;
    std::uint32_t end = kNone;
    for (std::uint32_t m = 0; m < members.size(); ++m) {
      const Pair& pair = graph_.pairs[members[m].pair];
      if (members[m].cost + pair.end_cost < end_cost) {
        end_cost = members[m].cost + pair.end_cost;
        end = m;
      }
      for (std::uint32_t a = pair.arc_begin; a < pair.arc_end; ++a) {
        const PairArc& arc = graph_.arcs[a];
        const std::int32_t word = graph_.ArcOf(arc).word;
        if (word == kNoWord) continue;
        found_.push_back({word, {arc.target, members[m].cost + arc.cost, m, a}});
      }
    }
    const std::uint32_t length = items_[index].length + 1;
    items_[index].members = std::move(members);
    if (end != kNone) queue_.push({end_cost, index, end});
    AddItems(index, length);
  }

  // One item for each word of found_.
  void AddItems(std::uint32_t parent, std::uint32_t length) {
    std::sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
      if (a.word != b.word) return a.word < b.word;
      if (a.member.pair != b.member.pair) return a.member.pair < b.member.pair;
      if (a.member.cost != b.member.cost) return a.member.cost < b.member.cost;
      return a.member.arc < b.member.arc;
    });
    for (std::size_t i = 0; i < found_.size();) {
      Item item{parent, found_[i].word, length, {}};
      double best = kInfinity;
      for (; i < found_.size() && found_[i].word == item.word; ++i) {
        const Member& member = found_[i].member;
        if (!item.members.empty() && item.members.back().pair == member.pair) continue;
        item.members.push_back(member);
        best = std::min(best, member.cost + graph_.pairs[member.pair].best);
      }
      const auto index = static_cast<std::uint32_t>(items_.size());
      items_.push_back(std::move(item));
      queue_.push({best, index, kNone});
    }
  }

  void AddPath(const Entry& entry, WordPaths* out) const {
    std::uint32_t item = entry.item, member = entry.end;
    const Pair& last = graph_.pairs[items_[item].members[member].pair];
    double log_prob = last.end_log_prob;
    std::vector<std::int32_t> arcs;
    for (;;) {
      const Member& at = items_[item].members[member];
      if (at.arc == kNone) break;
      const PairArc& arc = graph_.arcs[at.arc];
      log_prob += arc.log_prob;
      arcs.push_back(static_cast<std::int32_t>(graph_.ArcOf(arc).index));
      if (graph_.ArcOf(arc).word != kNoWord) item = items_[item].parent;
      member = at.from;
    }
    out->arcs.insert(out->arcs.end(), arcs.rbegin(), arcs.rend());
    out->begins.push_back(static_cast<std::int32_t>(out->arcs.size()));
    out->end_states.push_back(static_cast<std::int32_t>(last.state));
    out->costs.push_back(entry.cost);
    out->log_probs.push_back(log_prob);
  }

  struct Found {
    std::int32_t word;
    Member member;
  };

  struct After {
    const SequenceSearch* search;
    bool operator()(const Entry& a, const Entry& b) const { return search->IsAfter(a, b); }
  };

  const PairGraph& graph_;
  std::vector<Item> items_;
  std::vector<Found> found_;
  std::priority_queue<Entry, std::vector<Entry>, After> queue_{After{this}};
};

RescoredArrays Rescored(const PairGraph& graph) {
  RescoredArrays out;
  std::vector<std::uint32_t> by_rank(graph.pairs.size());
  for (std::uint32_t pair = 0; pair < graph.pairs.size(); ++pair) {
    by_rank[graph.pairs[pair].rank] = pair;
  }
  for (const std::uint32_t index : by_rank) {  // the start has rank 0
    const Pair& pair = graph.pairs[index];
    out.states.push_back(static_cast<std::int32_t>(pair.state));
    out.end_log_probs.push_back(pair.end_log_prob);
    for (std::uint32_t a = pair.arc_begin; a < pair.arc_end; ++a) {
      const PairArc& arc = graph.arcs[a];
      out.sources.push_back(static_cast<std::int32_t>(pair.rank));
      out.targets.push_back(static_cast<std::int32_t>(graph.pairs[arc.target].rank));
      out.arcs.push_back(static_cast<std::int32_t>(graph.ArcOf(arc).index));
      out.log_probs.push_back(arc.log_prob);
    }
  }
  return out;
}

}  // namespace

WordSearchResult SearchWordLattice(const WordLattice& lattice, const WordScorer& scorer,
                                   const WordSearchOptions& options) {
  if (!std::isfinite(options.alpha) || std::abs(options.alpha) > 0x1p16) {
    throw ValueError(StrCat("word lattice: alpha is ", options.alpha, "; expected -65536..65536"));
  }
  if (options.num_paths < 1) {
    throw ValueError(StrCat("word lattice: ", options.num_paths, " paths; expected 1 at least"));
  }
  const PairGraph graph(lattice, scorer, options);
  WordSearchResult result;
  result.paths = SequenceSearch(graph).Find(options.num_paths);
  if (options.rescored_lattice) result.rescored = Rescored(graph);
  return result;
}

}  // namespace lattice_bpd
