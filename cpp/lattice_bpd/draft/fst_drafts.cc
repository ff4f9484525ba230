#include "lattice_bpd/draft/fst_drafts.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/draft/openfst_paths.h"
#include "lattice_bpd/lattice/acceptor.h"

namespace lattice_bpd {
namespace {

std::vector<ScoredPath> FindInSausage(const SausageAcceptor& acceptor, const BackoffLm* lm,
                                      const LmState& start, const DraftOptions& options) {
  const DraftList drafts = FindDrafts(acceptor.sausage, lm, start, options);
  std::vector<ScoredPath> paths(drafts.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto first = drafts.token_ids.begin() + static_cast<std::ptrdiff_t>(i * drafts.num_slots);
    paths[i].cost = acceptor.final_cost - drafts.scores[i];
    paths[i].token_ids.assign(first, first + static_cast<std::ptrdiff_t>(drafts.num_slots));
  }
  return paths;
}

std::vector<ScoredPath> FindPaths(const ScoreVectorFst& acceptor, const BackoffLm* lm,
                                  const LmState& start, const DraftOptions& options) {
  if (acceptor.NumStates() == 0) return {};
  if (options.engine != Engine::kOpenFst) {
    const std::optional<SausageAcceptor> sausage = AsSausage(acceptor);
    if (sausage) return FindInSausage(*sausage, lm, start, options);
    if (options.engine == Engine::kFused) {
      throw ValueError(
          "engine \"fused\" searches sausages only, and this acceptor is none; use \"auto\"");
    }
  }
  return FindBestPaths(ComposeWithLm(acceptor, lm, start, options.alpha),
                       static_cast<std::size_t>(options.num_drafts));
}

DraftBatch ToBatch(const std::vector<ScoredPath>& paths, std::size_t num_drafts) {
  DraftBatch out;
  for (const ScoredPath& path : paths)
    out.num_slots = std::max(out.num_slots, path.token_ids.size());
  out.token_ids.assign(num_drafts * out.num_slots, kPadToken);
  out.scores.assign(num_drafts, -std::numeric_limits<float>::infinity());
  out.counts = {static_cast<std::int32_t>(paths.size())};
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::copy(paths[i].token_ids.begin(), paths[i].token_ids.end(),
              out.token_ids.data() + i * out.num_slots);
    out.scores[i] = static_cast<float>(-paths[i].cost);
  }
  return out;
}

}  // namespace

DraftBatch FindFstDrafts(const std::string& acceptor, const BackoffLm* lm, const LmState& start,
                         const DraftOptions& options) {
  CheckNumDrafts(options.num_drafts);
  CheckAlpha(options.alpha);
  const ScoreVectorFst lattice = ReadAcceptor(acceptor);
  if (lm != nullptr) CheckVocabulary(MaxTokenId(lattice), *lm);
  return ToBatch(FindPaths(lattice, lm, start, options),
                 static_cast<std::size_t>(options.num_drafts));
}

}  // namespace lattice_bpd
