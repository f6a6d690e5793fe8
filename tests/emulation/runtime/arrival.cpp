// What a kernel ahead would write while a dependent launch already runs (csrc/common/launch.h).
#include "emulation/host.h"
#include "emulation/threads.h"

#include <vector>

namespace {

struct Arrival {
  void* to;
  const void* from;
  std::size_t bytes;
};

std::vector<Arrival> pending;

}  // namespace

void emulation_arrive_at_wait(void* to, const void* from, std::size_t bytes) { pending.push_back({to, from, bytes}); }

std::size_t emulation_pending_arrivals() { return pending.size(); }

void emulation::wait_for_previous() {
  if (pending.empty()) return;
  barrier({"wait_for_previous", __FILE__, __LINE__});  // all threads have done what they do before the wait
  for (const Arrival& arrival : pending) std::memcpy(arrival.to, arrival.from, arrival.bytes);
  pending.clear();
}
