#include "lattice_bpd/mixture/draft_lengths.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "lattice_bpd/base/errors.h"

namespace lattice_bpd {
namespace {

constexpr double kLeastGain = 0.05;  // errors of estimates may hide less, unless the mean is more
constexpr double kShare = 0.005;     // of the time, for searches without drafts, and lost by trials
constexpr int kTrial = 64;           // steps after which the other choice is tried; fewer at first
constexpr int kOld = 512;            // steps after which the time of a size is no longer known
constexpr int kFew = 3;              // steps from which on a low time is no chance
constexpr double kMostError = 0.25;  // of a step's logarithm: interruptions count no more
constexpr double kFar = 0.5;         // likewise: kFew such steps are no interruptions
constexpr double kLevelRate = 0.1, kSizeRate = 1.0 / 64;  // weights of a step in mean logarithms
constexpr double kLeastWorth = 4.0;  // what drafts gain, relative to what slots cost
constexpr double kGainRate = 0.03, kCostRate = 0.1;  // weights of a new one in a mean
constexpr double kPrior = 16.0, kKeep = 0.995;       // of a calibration: tokens, weight of the past
constexpr double kForget = 0.98;                     // of the longest draft, for each step

double Low(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 3];
}

double ProbOf(const DraftNode& node) { return std::exp(double{node.log_prob}); }

// The first index of the grid whose size is `size` or more.
int GridIndex(int size) {
  int index = 0;
  while (StepTimes::GridSize(index) < size) ++index;
  return index;
}

}  // namespace

AcceptanceCalibration::AcceptanceCalibration() {
  for (int n = 0; n <= kBuckets; ++n) expected_[n] = kPrior * (n + 0.5) / kBuckets;
  accepted_ = expected_;
}

void AcceptanceCalibration::Observe(Span<double> probs, int accepted) {
  for (std::size_t i = 0; i < probs.size(); ++i) {
    const int n = static_cast<int>(probs[i] * kBuckets);
    expected_[n] = kKeep * expected_[n] + probs[i];
    accepted_[n] = kKeep * accepted_[n] + (static_cast<int>(i) < accepted ? 1.0 : 0.0);
  }
}

std::vector<double> AcceptanceCalibration::Adjust(Span<double> probs) const {
  std::vector<double> adjusted;
  double least = 1.0;
  for (const double prob : probs) {
    const int n = static_cast<int>(prob * kBuckets);
    least = std::min(least, prob * accepted_[n] / expected_[n]);
    adjusted.push_back(least);
  }
  return adjusted;
}

// 0, 1, 2, 3, 4, 6, 8, 12, ..: few, since the first step of each is slow.
int StepTimes::GridSize(int index) {
  if (index < 4) return index;
  return index % 2 == 0 ? 1 << index / 2 : 3 << (index - 3) / 2;
}

StepTimes::StepTimes(int num_requests, int num_tokens)
    : longest(num_tokens), token_cost(0x1p-22), num_requests_(num_requests) {}

void StepTimes::Add(int size, double seconds) {
  num_same_ = was_plain == (size == 0) ? num_same_ + 1 : 1;
  was_plain = size == 0;
  largest = std::max(largest, size);
  ++(size > 0 ? num_drafts_ : num_plain);
  const int now = num_plain + num_drafts_;
  const auto index = static_cast<std::size_t>(GridIndex(size));
  if (sizes_.size() <= index) sizes_.resize(index + 1);
  Size& one = sizes_[index];
  const double log = std::log(std::max(seconds, 1e-9)) - level_;
  const bool is_far = one.steps >= kFew && std::abs(log - one.log) > kFar;
  one.num_far = is_far ? one.num_far + 1 : 0;
  if (one.num_far == kFew) one.steps = one.num_far = 0;  // no chance: the size is known anew
  if (one.steps < kFew) {
    one.log = one.steps == 0 ? log : std::min(one.log, log);
  } else {
    const double error = std::clamp(log - one.log, -kMostError, kMostError);
    one.log += std::max(1.0 / (one.steps + 1), kSizeRate) * error;
    level_ += kLevelRate * error;
  }
  ++one.steps;
  one.last = now;
  for (std::size_t i = 1; i < sizes_.size(); ++i) {
    if (now - sizes_[i].last >= kOld) sizes_[i].steps = 0;
  }
}

std::vector<double> StepTimes::Estimate(int size) {
  const std::map<int, double> times = Known();
  double seconds = times.at(0);
  std::vector<double> slopes;
  for (const auto& [tokens, time] : times) {
    if (tokens > 0) slopes.push_back((time - seconds) / tokens);
  }
  const double slope = slopes.empty() ? 0.0 : std::max(Low(slopes), 0.0);
  int exponent = 0;
  std::frexp(std::max(num_requests_ * slope / seconds, 1e-6), &exponent);
  token_cost = std::ldexp(1.0, std::min(exponent - 2, -2));
  std::vector<double> estimates;
  int known = 0;
  for (int i = 0; i <= GridIndex(size); ++i) {
    const int tokens = GridSize(i);
    const auto n = static_cast<std::size_t>(i);
    if (n < sizes_.size() && sizes_[n].steps >= kFew) seconds = times.at(tokens), known = tokens;
    estimates.push_back(seconds + slope * (tokens - known));
  }
  return estimates;
}

bool StepTimes::IsTrialDue(int size, double gain) const {
  if (was_plain != (size == 0)) return false;
  double often = std::min(4 * (1 + std::min(num_plain, num_drafts_)), kTrial);
  if (size == 0 && num_drafts_ >= kFew) often = std::max(often, (1.0 / gain - 1.0) / kShare);
  return num_same_ >= often;
}

std::map<int, double> StepTimes::Known() const {
  std::map<int, double> known;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i].steps > 0) {
      known[GridSize(static_cast<int>(i))] = std::exp(level_ + sizes_[i].log);
    }
  }
  return known;
}

DraftLengths::DraftLengths(int num_tokens, bool has_slots, bool may_pause)
    : num_tokens_(num_tokens), has_slots_(has_slots), may_pause_(may_pause) {}

void DraftLengths::Observe(const std::vector<std::string>& names, Span<int> kept,
                           Span<int> verified, double now) {
  if (names.size() < kept.size() || (!verified.empty() && verified.size() < kept.size())) {
    throw ValueError("DraftLengths: names and verified; expected one for each request");
  }
  std::vector<Request> step(kept.size());
  bool is_measured = is_timing_ && !step.empty();
  for (std::size_t i = 0; i < step.size(); ++i) {
    step[i].name = names[i];
    step[i].kept = kept[i];
    auto last = step_.begin() + static_cast<std::ptrdiff_t>(std::min(i, step_.size()));
    if (last == step_.end() || last->name != names[i]) {
      last = std::find_if(step_.begin(), step_.end(),
                          [&](const Request& one) { return one.name == names[i]; });
    }
    const bool is_known = last != step_.end() && last->kept > 0;
    is_measured = is_measured && is_known && kept[i] > 0;
    if (!is_known || kept[i] == 0 || verified.empty()) continue;
    if (last->drafted.size() == static_cast<std::size_t>(verified[i])) {
      calibration_.Observe(last->drafted, kept[i] - 1);
    }
  }
  step_ = std::move(step);
  is_timing_ = false;
  if (!is_measured) return;
  const int size = std::accumulate(verified.begin(), verified.end(), 0);
  TimesOf(static_cast<int>(kept.size())).Add(size, now - begin_);
}

bool DraftLengths::IsPaused(int num_requests) {
  StepTimes& times = TimesOf(num_requests);
  if (times.pause == 0 || !may_pause_) return false;
  --times.pause;
  return true;
}

bool DraftLengths::ReadsSlots() {
  reads_slots_ = has_slots_;
  if (!has_slots_ || !may_pause_) return reads_slots_;
  StepTimes& times = TimesOf(static_cast<int>(step_.size()));
  const bool is_trial = times.searches < kTrial / 4 || times.searches % kTrial == 0;
  const bool pays = times.gain >= 1.0 + kLeastWorth * times.slots_cost;
  return reads_slots_ = pays || is_trial;
}

std::vector<std::vector<std::int64_t>> DraftLengths::Draft(const std::vector<MixtureText*>& texts,
                                                           Span<int> requests,
                                                           Span<std::int32_t> max_lengths,
                                                           const std::vector<HeadCandidates>& heads,
                                                           double own_seconds, int threads) {
  if (requests.size() != texts.size() || max_lengths.size() != texts.size()) {
    throw ValueError("DraftLengths: requests and max_lengths; expected one for each text");
  }
  for (const int request : requests) {
    if (request < 0 || static_cast<std::size_t>(request) >= step_.size()) {
      throw ValueError(StrCat("DraftLengths: request ", request,
                              "; the step that was observed has ", step_.size()));
    }
  }
  std::vector<std::vector<std::int64_t>> drafts(texts.size());
  StepTimes& times = TimesOf(static_cast<int>(step_.size()));
  if (times.num_plain == 0) return drafts;
  // Longer drafts are not verified lately, and improbable tokens do not pay. After a step without
  // drafts, whose cost may be overestimated, all that may be tried.
  const int most = static_cast<int>(2 * times.longest);
  BatchLimits limits;
  limits.is_chain = true;
  std::vector<std::int32_t> max_depths;
  for (const std::int32_t length : max_lengths) {
    limits.max_nodes = std::max(limits.max_nodes, std::min(length, most));
    max_depths.push_back(std::min(length, most));
  }
  limits.max_depths = max_depths;
  std::vector<double> costs;
  for (int n = 0; !times.was_plain && n <= limits.max_nodes; ++n) {
    costs.push_back(1.0 + times.token_cost * n);
  }
  limits.costs = costs;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<PrefixTree> chains = SearchMixtures(texts, heads, limits, threads);
  own_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Choice choice = Choose(chains, own_seconds);
  times.gain += std::max(kGainRate, 1.0 / ++times.searches) * (choice.gain - times.gain);
  const double cost = own_seconds / times.Estimate(0)[0];
  if (reads_slots_) times.slots_cost += kCostRate * (cost - times.slots_cost);
  if (!choice.requests.empty() && times.IsTrialDue(choice.size, choice.trial_gain)) {
    choice.size = choice.size > 0 ? 0 : choice.trial_size;
  } else if (choice.size == 0 && !reads_slots_ && times.gain < 1.0 + cost) {
    times.pause = static_cast<int>(std::min<double>(cost / kShare, kTrial));
  }
  times.longest = std::max(kForget * times.longest, 1.0);
  for (int i = 0; i < choice.size; ++i) {
    const std::size_t request = choice.requests[static_cast<std::size_t>(i)];
    const DraftNode& node = chains[request].nodes()[drafts[request].size() + 1];
    drafts[request].push_back(node.token_id);
    step_[static_cast<std::size_t>(requests[request])].drafted.push_back(ProbOf(node));
    times.longest = std::max(times.longest, static_cast<double>(drafts[request].size()));
  }
  return drafts;
}

DraftLengths::Choice DraftLengths::Choose(const std::vector<PrefixTree>& chains,
                                          double own_seconds) {
  const auto count = static_cast<int>(step_.size());
  StepTimes& times = TimesOf(count);
  // What each token adds to the logarithm of its request's speed, negative, and the request. A
  // prefix precedes what extends it, since they add ever less.
  std::vector<std::pair<double, std::size_t>> added;
  for (std::size_t request = 0; request < chains.size(); ++request) {
    const auto& nodes = chains[request].nodes();
    std::vector<double> probs;
    for (std::size_t n = 1; n < nodes.size(); ++n) probs.push_back(ProbOf(nodes[n]));
    double expected = 1.0, before = 0.0;
    for (const double prob : calibration_.Adjust(probs)) {
      expected += prob;
      const double log = std::log(expected);
      added.emplace_back(before - log, request);
      before = log;
    }
  }
  std::sort(added.begin(), added.end());
  added.resize(
      std::min(added.size(), static_cast<std::size_t>(std::max(2 * times.largest, count))));
  const auto most = static_cast<int>(added.size());
  const std::vector<double> seconds = times.Estimate(most);
  const double plain = seconds[0] + own_seconds;
  Choice choice;
  std::vector<double> logs = {0.0};
  for (const auto& [less, request] : added) {
    logs.push_back(logs.back() - less);
    choice.requests.push_back(request);
  }
  // The largest sum of each time; the most promising trial is of a token for each request.
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const int sum = std::min(StepTimes::GridSize(static_cast<int>(i)), most);
    const double gain =
        std::exp(logs[static_cast<std::size_t>(sum)] / count) * plain / (seconds[i] + own_seconds);
    if (gain > choice.gain) choice.gain = gain, choice.size = sum;
    if (sum >= std::min(count, most) && gain > choice.trial_gain) {
      choice.trial_gain = gain, choice.trial_size = sum;
    }
  }
  if (std::max(choice.gain, times.gain) < 1.0 + kLeastGain) choice.gain = 1.0, choice.size = 0;
  return choice;
}

std::map<int, double> DraftLengths::StepSeconds(int num_requests) {
  return TimesOf(num_requests).Known();
}

StepTimes& DraftLengths::TimesOf(int num_requests) {
  int grain = 1;
  while (num_requests >= 8 * grain) grain *= 2;
  const int rounded = (num_requests + grain - 1) / grain * grain;
  return times_.try_emplace(rounded, rounded, num_tokens_).first->second;
}

}  // namespace lattice_bpd
