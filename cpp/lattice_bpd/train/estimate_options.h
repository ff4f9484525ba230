// Options of estimation, and its report; shared by all estimators.
#ifndef LATTICE_BPD_TRAIN_ESTIMATE_OPTIONS_H_
#define LATTICE_BPD_TRAIN_ESTIMATE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lattice_bpd {

// estimate.h has the formulas.
enum class Smoothing { kKatz, kKneserNey, kModifiedKneserNey, kWittenBell, kAbsolute };

// "katz", "kneser_ney", "modified_kneser_ney", "witten_bell", "absolute". Throws ValueError.
Smoothing ParseSmoothing(const std::string& name);

// What token ids get that the text lacks (unigrams.h): cost 1000, or a share of the probability.
enum class Unseen { kCost, kUniform };

// "cost" or "uniform". Throws ValueError.
Unseen ParseUnseen(const std::string& name);

struct EstimateOptions {
  int order = 4;
  int katz_k = 5;                         // Katz: counts 1 .. katz_k are discounted; 1..32
  std::vector<std::uint64_t> min_counts;  // one for each order; empty: every n-gram stays

  // Take counts of counts (and continuation counts) from all n-grams of the corpus, or from those
  // that min_counts leaves. All is right: n_1 and n_2 are statistics of the language, and cutting
  // them off leaves n_r = 0 just where the discounts need them. The other is what a toolkit that
  // prunes counts first and estimates later gets.
  bool full_count_of_counts = true;

  int threads = 0;  // 0: every core
  Smoothing smoothing = Smoothing::kKatz;
  Unseen unseen = Unseen::kCost;
};

// What a user should hear about: one line each, which names the order and the numbers.
struct TrainReport {
  std::vector<std::string> warnings;

  void Add(std::string line) {
    if (!line.empty()) warnings.push_back(std::move(line));
  }
};

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_TRAIN_ESTIMATE_OPTIONS_H_
