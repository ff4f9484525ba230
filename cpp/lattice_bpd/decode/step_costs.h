// What a decoding step costs by the number of its draft tokens, on a machine whose pace changes.
//
// A processor is shared, warms up, slows down; texts grow. What was measured of one size a thousand
// steps ago is not to be compared with what another size takes now. And one step's time is off by a
// tenth and more, so that sizes which are near each other must learn from each other. So
//
//   ln time = pace + f(size) [+ looking] + noise
//
// where f is smooth, and all of them follow what is measured as far as they are uncertain: a
// Gaussian process over sizes (Rasmussen and Williams 2006, chapter 2), updated as a Kalman filter
// (Kalman 1960).
#ifndef LATTICE_BPD_DECODE_STEP_COSTS_H_
#define LATTICE_BPD_DECODE_STEP_COSTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace lattice_bpd {

class StepCosts {
 public:
  StepCosts();

  // The typical time of `steps` steps with `size` draft tokens.
  struct Timing {
    std::int64_t size = 0;
    double seconds = 0.0;
    std::int64_t steps = 1;
  };

  // Times of steps that took turns, so that they have the machine's pace in common. A step that is
  // looked at leaves caches cold, and takes longer for that. A size's first time, which may be
  // that of compiling and allocating too, does not count once there is a second one. Throws
  // ValueError unless sizes are at least 0, steps at least 1 and seconds numbers.
  void Add(const std::vector<Timing>& timings, bool looked_at);

  // How many steps of exactly this size were measured.
  std::int64_t Count(std::int64_t size) const;

  // Expected seconds of steps with so many draft tokens. No size costs more than a larger one;
  // between measured sizes costs are linear, and beyond the largest they go on as steep as from the
  // smallest to there. If `drawn`, costs that may be instead of the expected ones, closer to these
  // than they are uncertain (Thompson 1933). Throws ValueError before the first time.
  std::vector<double> Seconds(const std::vector<std::int64_t>& sizes, bool drawn);

 private:
  std::size_t PlaceOf(std::int64_t size) const;  // 0: not among the unknowns
  void AddOne(const Timing& timing, bool looked_at);
  void BeginWith(std::int64_t size);
  void Forget();
  std::size_t Append(std::int64_t size);
  double& Doubt(std::size_t i, std::size_t k) { return doubt_[i * mean_.size() + k]; }
  void Update(const std::vector<std::size_t>& parts, double measured, double noise);
  std::vector<double> DrawnLogs();

  std::vector<std::int64_t> sizes_;  // of the unknowns from kFirst on
  std::map<std::int64_t, std::int64_t> uses_;
  std::vector<double> mean_;   // of pace, looking, and each size's ln cost at a pace of 0
  std::vector<double> doubt_;  // their covariance, row by row
  std::vector<double> prior_;  // of the sizes, before anything was measured
  std::mt19937_64 random_{0};
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_DECODE_STEP_COSTS_H_
