// Threads of another library in this process, torch's. Where a model runs on the CPU its threads
// spin for milliseconds after each call: threads of our own would share their cores, or, where an
// engine binds each thread to a core, have none.
#ifndef LATTICE_BPD_BASE_THREAD_TEAM_H_
#define LATTICE_BPD_BASE_THREAD_TEAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace lattice_bpd {

// Functions of torch's C interface (torch/csrc/stable/c/shim.h, since 2.10); both return 0 unless
// they fail.
struct ThreadTeam {
  using Task = void (*)(std::int64_t begin, std::int64_t end, void* context);

  // Cuts begin .. end into ranges of `grain` or more, at most one for each thread, and calls the
  // task with each; on the caller's thread alone within a call of itself.
  std::int32_t (*parallel_for)(std::int64_t begin, std::int64_t end, std::int64_t grain, Task task,
                               void* context);
  std::int32_t (*count_threads)(std::uint32_t* count);
};

// From now on RunParallel uses this team in this process; forked children use threads of their own.
void SetThreadTeam(const ThreadTeam& team);

// Threads of the team, the caller's included, as the library is set now; 1 without a team.
int CountTeamThreads();

// Calls work() here, and on up to `helpers` threads besides. Needs a team; `work` must not throw,
// and calls after the first may find nothing left to do.
void RunOnTeam(std::size_t helpers, const std::function<void()>& work);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_THREAD_TEAM_H_
