#include "lattice_bpd/train/evaluate_lm.h"

#include <algorithm>
#include <cmath>

#include "lattice_bpd/base/parallel.h"
#include "lattice_bpd/train/context_mass.h"

namespace lattice_bpd {
namespace {

constexpr std::size_t kSequencesOfTask = 256;  // fixed, so that sums do not depend on threads

// visit(matched, step) for each event of a sequence: `matched` symbols of history were used; or
// visit(-1, step) for an unknown token.
template <typename Visit>
void ForEachEvent(const BackoffLm& lm, Span<TokenId> words, bool bos, bool eos,
                  const Visit& visit) {
  const Vocabulary& vocabulary = lm.vocabulary();
  LmState state;
  if (bos) state = lm.StateOf(Span<Symbol>(&vocabulary.bos, 1));
  const auto score = [&](Symbol symbol) {
    const LmStep step = lm.Query(state, symbol);
    const bool known = HasMass(lm.levels()[0].LogProb(symbol));
    visit(known ? static_cast<int>(state.length) - step.num_backoffs : -1, step);
    state = step.next;
  };
  for (const TokenId word : words) score(static_cast<Symbol>(word));
  if (eos) score(vocabulary.eos);
}

// task(first, last, i) on runs of sequences.
template <typename Task>
void RunOverSequences(const TokenSequences& sequences, int num_threads, const Task& task) {
  const std::size_t size = sequences.size();
  const std::size_t num_tasks = (size + kSequencesOfTask - 1) / kSequencesOfTask;
  RunParallel(num_tasks, num_threads, [&](std::size_t i) {
    task(i * kSequencesOfTask, std::min(size, (i + 1) * kSequencesOfTask), i);
  });
}

}  // namespace

void TextScore::Add(const TextScore& other) {
  tokens += other.tokens;
  unknown += other.unknown;
  log_prob += other.log_prob;
  hits.resize(std::max(hits.size(), other.hits.size()));
  for (std::size_t i = 0; i < other.hits.size(); ++i) hits[i] += other.hits[i];
}

TextScore EvaluateLm(const BackoffLm& lm, const TokenSequences& sequences, bool bos, bool eos,
                     int num_threads) {
  CheckAndCountEvents(sequences, lm.vocabulary());
  std::vector<TextScore> parts(sequences.size() / kSequencesOfTask + 1);
  RunOverSequences(sequences, ResolveThreads(num_threads),
                   [&](std::size_t first, std::size_t last, std::size_t i) {
                     TextScore part;
                     part.hits.resize(static_cast<std::size_t>(lm.order()));
                     for (std::size_t s = first; s < last; ++s) {
                       ForEachEvent(lm, WordsOfSequence(sequences, lm.vocabulary(), s), bos, eos,
                                    [&](int matched, const LmStep& step) {
                                      ++part.tokens;
                                      part.unknown += matched < 0;
                                      if (matched < 0) return;
                                      part.log_prob += step.TotalLogProb();
                                      ++part.hits[static_cast<std::size_t>(matched)];
                                    });
                     }
                     parts[i] = std::move(part);
                   });
  TextScore score;
  for (const TextScore& part : parts) score.Add(part);
  return score;
}

std::vector<double> ProbsOfText(const BackoffLm& lm, const TokenSequences& sequences,
                                int num_threads) {
  CheckAndCountEvents(sequences, lm.vocabulary());
  std::vector<std::uint64_t> begin = {0};
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    begin.push_back(begin.back() + WordsOfSequence(sequences, lm.vocabulary(), s).size() + 1);
  }
  std::vector<double> probs(begin.back());
  RunOverSequences(sequences, ResolveThreads(num_threads),
                   [&](std::size_t first, std::size_t last, std::size_t) {
                     std::uint64_t at = begin[first];
                     for (std::size_t s = first; s < last; ++s) {
                       ForEachEvent(lm, WordsOfSequence(sequences, lm.vocabulary(), s), true, true,
                                    [&](int matched, const LmStep& step) {
                                      probs[at++] =
                                          matched < 0 ? 0.0 : std::exp(step.TotalLogProb());
                                    });
                     }
                   });
  return probs;
}

}  // namespace lattice_bpd
