// Lengths of a batch's drafts, by the measured time of an engine's steps.
//
// A step reads the draft tokens of all requests in one forward pass without padding, so its time
// depends on their sum, and measurements are kept by that sum and the number of requests. The draft
// of one request slows the others down, so what is maximized is the geometric mean of the requests'
// speeds: (product of 1 + sum of a draft's probabilities)^(1 / requests) / time. The draft tokens
// that multiply it most are verified, as many as pay.
#ifndef LATTICE_BPD_MIXTURE_DRAFT_LENGTHS_H_
#define LATTICE_BPD_MIXTURE_DRAFT_LENGTHS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lattice_bpd/base/array_view.h"
#include "lattice_bpd/mixture/mixture_search.h"

namespace lattice_bpd {

// Probabilities of draft tokens by what was accepted of those that were verified: a mixture that
// knows little of a text, such as its first words alone, is overconfident.
class AcceptanceCalibration {
 public:
  AcceptanceCalibration();

  // Learn from a verified draft, of which `accepted` tokens were.
  void Observe(Span<double> probs, int accepted);

  // Probabilities of a draft's prefixes, which do not increase, by what is accepted.
  std::vector<double> Adjust(Span<double> probs) const;

 private:
  static constexpr int kBuckets = 4;                      // few, so that each learns soon
  std::array<double, kBuckets + 1> expected_, accepted_;  // the last one is of probability 1
};

// What is known of the steps of a number of requests. Times are in seconds.
class StepTimes {
 public:
  StepTimes(int num_requests, int num_tokens);

  // A step with so many draft tokens.
  void Add(int size, double seconds);

  // Of steps of GridSize(0), GridSize(1), .. draft tokens, to `size` or more, at the machine's
  // recent speed: what other programs do to all steps does not change how sizes compare. Sizes of
  // fewer than three steps are on a line of a low slope.
  std::vector<double> Estimate(int size);

  // Whether to do the other than to verify `size` draft tokens, to measure it again. `gain`: speed
  // with the drafts to try, relative to none.
  bool IsTrialDue(int size, double gain) const;

  // By draft tokens, where measured.
  std::map<int, double> Known() const;

  bool was_plain = true;    // the last step had no drafts
  int num_plain = 0;        // steps without drafts
  int largest = 0;          // draft tokens of the largest step; the next has at most twice as many
  double longest;           // tokens of the longest draft, lately
  int pause = 0;            // steps to come without a search
  int searches = 0;         // steps with a search
  double gain = 1.0;        // mean expected speed, relative to no drafts
  double slots_cost = 0.0;  // mean time of drafting with slots, relative to a step without drafts
  double token_cost;        // of a search: a quarter or more of what a token costs all requests

  static int GridSize(int index);

 private:
  struct Size {
    double log = 0.0;         // mean logarithm of the time, less the level
    int steps = 0, last = 0;  // measured; the last one of them
    int num_far = 0;          // of the last ones, far from the mean
  };

  int num_requests_, num_drafts_ = 0, num_same_ = 0;
  double level_ = 0.0;       // mean logarithm of recent steps' times, less that of their size
  std::vector<Size> sizes_;  // of the grid
};

// Drafts for the requests of an engine, as long as pays.
class DraftLengths {
 public:
  // num_tokens: draft tokens that the engine verifies at most for a request. has_slots: whether
  // heads or a block drafter are a source. may_pause: false where other processes read the same
  // slots together with this one, so that every step must read them.
  DraftLengths(int num_tokens, bool has_slots, bool may_pause);

  // A step ended at `now`, in seconds: names of the batch's requests, tokens that each kept (0: its
  // prompt is not complete), draft tokens verified for each (empty: none). Adds the time since
  // Finish, if no prompt was read in it. Throws ValueError where lengths differ.
  void Observe(const std::vector<std::string>& names, Span<int> kept, Span<int> verified,
               double now);

  // Drafts are ready, and the engine's next step begins.
  void Finish(double now) { begin_ = now, is_timing_ = true; }

  // Whether Observe measures the step that ends.
  bool is_timing() const { return is_timing_; }

  // Whether nothing is searched in a step of so many requests, since drafts rarely pay and
  // searches cost time.
  bool IsPaused(int num_requests);

  // Whether the step that was observed reads the slots: where they cost little of what drafts gain.
  bool ReadsSlots();

  // A draft for each of `requests`, numbers in the batch that was observed. own_seconds: time that
  // drafting took before this call. Throws ValueError as SearchMixtures.
  std::vector<std::vector<std::int64_t>> Draft(const std::vector<MixtureText*>& texts,
                                               Span<int> requests, Span<std::int32_t> max_lengths,
                                               const std::vector<HeadCandidates>& heads,
                                               double own_seconds, int threads);

  // Recent times of steps of so many requests, by draft tokens, rounded up.
  std::map<int, double> StepSeconds(int num_requests);

 private:
  struct Request {
    std::string name;
    int kept = 0;
    std::vector<double> drafted;  // probabilities of the draft's prefixes
  };

  // Draft tokens of a step.
  struct Choice {
    std::vector<std::size_t> requests;  // whose draft each token extends, the best token first
    int size = 0, trial_size = 0;       // how many of them; how many if drafts are tried
    double gain = 1.0;                  // expected speed, relative to no drafts
    double trial_gain = 0.0;            // that of the trial
  };

  // What is known of batches of about so many requests: exact to 7, within 25 % above.
  StepTimes& TimesOf(int num_requests);

  // The draft tokens that pay most, by the probabilities of drafts' prefixes.
  Choice Choose(const std::vector<PrefixTree>& chains, double own_seconds);

  int num_tokens_;
  bool has_slots_, may_pause_, reads_slots_ = false, is_timing_ = false;
  double begin_ = 0.0;
  std::vector<Request> step_;  // that was observed last
  std::map<int, StepTimes> times_;
  AcceptanceCalibration calibration_;
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_MIXTURE_DRAFT_LENGTHS_H_
