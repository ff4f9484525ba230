#include "lattice_bpd/base/thread_team.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace lattice_bpd {
namespace {

struct TeamOfProcess {
  ThreadTeam team;
  pid_t process;
};

std::atomic<const TeamOfProcess*> g_team{nullptr};

}  // namespace

void SetThreadTeam(const ThreadTeam& team) {
  const TeamOfProcess* const last = g_team;
  if (last != nullptr && last->process == ::getpid() &&
      last->team.parallel_for == team.parallel_for &&
      last->team.count_threads == team.count_threads) {
    return;
  }
  g_team = new TeamOfProcess{team, ::getpid()};  // never deleted: a call may be using the last one
}

int CountTeamThreads() {
  const TeamOfProcess* const team = g_team;
  std::uint32_t count = 0;
  if (team == nullptr || team->process != ::getpid() || team->team.count_threads(&count) != 0) {
    return 1;
  }
  return static_cast<int>(count);
}

void RunOnTeam(std::size_t helpers, const std::function<void()>& work) {
  const TeamOfProcess* const team = g_team;
  const auto run = [](std::int64_t, std::int64_t, void* context) {
    (*static_cast<const std::function<void()>*>(context))();
  };
  team->team.parallel_for(0, static_cast<std::int64_t>(helpers) + 1, 1, run,
                          const_cast<std::function<void()>*>(&work));
  work();  // what is left where the team failed
}

}  // namespace lattice_bpd
