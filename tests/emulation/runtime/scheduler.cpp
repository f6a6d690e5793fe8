// Runs a launch: fibers for its threads, who goes next, barriers, and exchanges within a wave.
//
// A thread starts on the fiber of the thread that ran before it, if that one finished: a kernel without barriers runs on
// one fiber. A thread that waits keeps its fiber and hands over straight to the next.
#include "emulation/host.h"
#include "emulation/threads.h"

#include "fiber.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

// First and last object of .bss that belong to kernels: build.py links them around the kernels' objects.
extern unsigned char emulation_shared_begin[], emulation_shared_end[];

namespace emulation {

Position position;
uint3 block_index;
dim3 block_size, grid_size;
unsigned char* dynamic_shared;

namespace {

constexpr unsigned kWaves = kMaxThreads / EMU_WAVE;

enum class State { ready, at_barrier, in_wave, finished };

struct Thread {
  Position position;
  State state;
  Site site;        // where it waits
  Fiber* fiber;     // null before it starts and after it finished
  unsigned parity;  // which of the two buffers its next exchange uses
};

struct Wave {
  unsigned lanes, waiting;
  uint64_t given[2][EMU_WAVE];  // two: a lane may give again while others still read
};

// Ascending order until a seed is set.
struct Order {
  uint64_t seed = 0, state = 0;
  void set(uint64_t value) {
    seed = state = value;
    if (seed != 0) std::fprintf(stderr, "emulation: waves of %d, order of lanes from seed %llu\n", EMU_WAVE,
                                static_cast<unsigned long long>(seed));
  }
  bool random() const { return seed != 0; }
  std::size_t below(std::size_t n) {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
  }
};

struct Scheduler {
  std::mutex mutex;  // one launch at a time
  Order order;
  const Launch* launch = nullptr;
  Fiber* main = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  Thread threads[kMaxThreads];
  Thread* running = nullptr;
  unsigned count = 0, unfinished = 0, at_barrier = 0;
  Wave waves[kWaves];
  Thread* ready[kMaxThreads];  // a ring: every thread is in it at most once
  unsigned first = 0, readies = 0;
  std::string failure;

  Scheduler() {
    if (const char* text = std::getenv("EMU_SEED")) order.set(std::strtoull(text, nullptr, 10));
  }

  void push(Thread* thread) {
    thread->state = State::ready;
    ready[(first + readies++) % kMaxThreads] = thread;
  }

  Thread* pop() {
    if (readies == 0) return nullptr;
    if (order.random()) std::swap(ready[first], ready[(first + order.below(readies)) % kMaxThreads]);
    Thread* next = ready[first];
    first = (first + 1) % kMaxThreads;
    --readies;
    return next;
  }

  Fiber* idle_fiber();
  void start_block();
  std::string run_block();
  void resume(Fiber& from, Thread* next);
  void leave(Fiber& from, Thread* next);
  void wait(State state, const Site& site);
  void fail(std::string text);
  std::string stuck() const;
  static void fiber_main();
};

Scheduler& scheduler() {
  static Scheduler one;
  return one;
}

std::string where(const Site& site) {
  std::string file = site.file;
  return std::string(site.operation) + " (" + file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line) + ")";
}
bool same(const Site& a, const Site& b) {
  if (a.line != b.line) return false;
  return (a.operation == b.operation || std::strcmp(a.operation, b.operation) == 0) &&
         (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}
std::string name_of(const Thread& t) {
  return "thread (" + std::to_string(t.position.thread.x) + "," + std::to_string(t.position.thread.y) + "," +
         std::to_string(t.position.thread.z) + ") of block (" + std::to_string(block_index.x) + "," +
         std::to_string(block_index.y) + "," + std::to_string(block_index.z) + ")";
}

Fiber* Scheduler::idle_fiber() {
  if (idle.empty()) {
    fibers.push_back(std::make_unique<Fiber>(&Scheduler::fiber_main));
    return fibers.back().get();
  }
  Fiber* fiber = idle.back();
  idle.pop_back();
  return fiber;
}

// Continues `next` on its own fiber, or on an idle one if it has not started.
void Scheduler::resume(Fiber& from, Thread* next) {
  if (next->fiber == nullptr) next->fiber = idle_fiber();
  running = next;
  position = next->position;
  Fiber::switch_stacks(from, *next->fiber);
}

// What every fiber does: run threads that have not started; hand over to waiting ones when they are next.
void Scheduler::fiber_main() {
  Scheduler& s = scheduler();
  for (;;) {
    Fiber* self = s.running->fiber;
    s.launch->thread();
    s.running->state = State::finished;
    s.running->fiber = nullptr;
    --s.unfinished;
    Thread* next = s.pop();
    if (next != nullptr && next->fiber == nullptr) {
      next->fiber = self;
      s.running = next;
      position = next->position;
    } else {
      s.idle.push_back(self);
      s.leave(*self, next);
    }
  }
}

// The running fiber is idle or waits: continues `next`, or ends the block when there is none.
void Scheduler::leave(Fiber& from, Thread* next) {
  if (next != nullptr) return resume(from, next);
  if (unfinished > 0) failure = stuck();
  Fiber::switch_stacks(from, *main);
}

void Scheduler::wait(State state, const Site& site) {
  Thread* self = running;
  self->state = state;
  self->site = site;
  Fiber& fiber = *self->fiber;
  Thread* next = pop();
  if (next == self) {  // its own turn again
    position = self->position;
    return;
  }
  leave(fiber, next);
}

// Ends the launch from inside a thread. Never returns: all fibers are restarted.
void Scheduler::fail(std::string text) {
  failure = std::move(text);
  Fiber::switch_stacks(*running->fiber, *main);
}

std::string Scheduler::stuck() const {
  std::string text = "divergent barrier or wave operation in block (" + std::to_string(block_index.x) + "," +
                     std::to_string(block_index.y) + "," + std::to_string(block_index.z) + "): " +
                     std::to_string(count - unfinished) + " of " + std::to_string(count) + " threads have finished";
  for (unsigned i = 0; i < count; ++i) {
    const Thread& t = threads[i];
    if (t.state == State::finished) continue;
    return text + ", while " + name_of(t) + " waits at " + where(t.site);
  }
  return text;
}

void Scheduler::start_block() {
  first = readies = at_barrier = 0;
  unfinished = count;
  for (unsigned i = 0; i < count; ++i) {
    Thread& t = threads[i];
    t.fiber = nullptr;
    t.parity = 0;
    push(&t);
  }
  for (Wave& wave : waves) wave.waiting = 0;
}

std::string Scheduler::run_block() {
  start_block();
  failure.clear();
  Fiber here;
  main = &here;
  resume(here, pop());
  if (!failure.empty()) {
    idle.clear();
    for (auto& fiber : fibers) {
      fiber->restart();
      idle.push_back(fiber.get());
    }
  }
  return failure;
}

// Word by word: memset would be stopped by AddressSanitizer at the gaps between the arrays.
__attribute__((no_sanitize_address, optimize("no-tree-loop-distribute-patterns"))) void poison(unsigned char* from,
                                                                                             unsigned char* to) {
  auto* word = reinterpret_cast<uint64_t*>(from);
  for (; word < reinterpret_cast<uint64_t*>(to); ++word) *word = kPoison;
}

void prepare(Scheduler& s, const Launch& launch) {
  s.launch = &launch;
  grid_size = launch.grid;
  block_size = launch.block;
  s.count = launch.block.x * launch.block.y * launch.block.z;
  for (unsigned i = 0; i < s.count; ++i) {
    const uint3 index{i % launch.block.x, i / launch.block.x % launch.block.y, i / (launch.block.x * launch.block.y)};
    s.threads[i].position = {index, i / EMU_WAVE, i % EMU_WAVE};
  }
  for (unsigned w = 0; w < kWaves; ++w) {
    const unsigned before = w * EMU_WAVE;
    s.waves[w].lanes = s.count <= before ? 0 : s.count - before < EMU_WAVE ? s.count - before : EMU_WAVE;
    for (auto& buffer : s.waves[w].given)
      for (uint64_t& word : buffer) word = kPoison;
  }
}

}  // namespace

std::string run(const Launch& launch) {
  Scheduler& s = scheduler();
  const std::lock_guard<std::mutex> one_at_a_time(s.mutex);
  prepare(s, launch);
  // Exactly as long as asked for, so that AddressSanitizer sees the first byte past it.
  const std::size_t words = (launch.dynamic_shared + 15) / 16 * 2;
  const std::unique_ptr<unsigned char, decltype(&std::free)> memory(
      static_cast<unsigned char*>(std::aligned_alloc(16, words == 0 ? 16 : words * 8)), &std::free);
  dynamic_shared = memory.get();

  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  std::vector<uint32_t> turn;
  if (s.order.random()) {
    turn.resize(blocks);
    for (uint64_t i = 0; i < blocks; ++i) turn[i] = static_cast<uint32_t>(i);
    for (uint64_t i = blocks; i > 1; --i) std::swap(turn[i - 1], turn[s.order.below(i)]);
  }
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t linear = turn.empty() ? i : turn[i];
    block_index = {static_cast<unsigned>(linear % launch.grid.x),
                   static_cast<unsigned>(linear / launch.grid.x % launch.grid.y),
                   static_cast<unsigned>(linear / launch.grid.x / launch.grid.y)};
    poison(emulation_shared_begin, emulation_shared_end);
    poison(dynamic_shared, dynamic_shared + words * 8);
    if (std::string failure = s.run_block(); !failure.empty()) return failure;
  }
  return {};
}

void barrier(const Site& site) {
  Scheduler& s = scheduler();
  for (unsigned i = 0; i < s.count && s.at_barrier > 0; ++i) {
    const Thread& other = s.threads[i];
    if (other.state != State::at_barrier) continue;
    if (same(other.site, site)) break;
    s.fail("divergent barrier: " + name_of(*s.running) + " is at " + where(site) + ", " + name_of(other) + " at " +
           where(other.site));
  }
  if (++s.at_barrier == s.count) {
    s.at_barrier = 0;
    Thread* self = s.running;
    if (!s.order.random()) {  // the last to come goes on at once
      for (unsigned i = 0; i < s.count; ++i)
        if (&s.threads[i] != self) s.push(&s.threads[i]);
      return;
    }
    for (unsigned i = 0; i < s.count; ++i) s.push(&s.threads[i]);
    return s.wait(State::ready, site);
  }
  s.wait(State::at_barrier, site);
}

const uint64_t* exchange(uint64_t given, const Site& site) {
  Scheduler& s = scheduler();
  Thread* self = s.running;
  Wave& wave = s.waves[self->position.wave];
  Thread* lanes = s.threads + self->position.wave * EMU_WAVE;
  const unsigned parity = self->parity;
  self->parity ^= 1u;
  wave.given[parity][self->position.lane] = given;
  for (unsigned i = 0; i < wave.lanes && wave.waiting > 0; ++i) {
    if (lanes[i].state != State::in_wave) continue;
    if (same(lanes[i].site, site)) break;
    s.fail("divergent wave operation: " + name_of(*self) + " is at " + where(site) + ", " + name_of(lanes[i]) + " at " +
           where(lanes[i].site));
  }
  if (++wave.waiting == wave.lanes) {
    wave.waiting = 0;
    if (s.order.random()) {
      for (unsigned i = 0; i < wave.lanes; ++i) s.push(&lanes[i]);
      s.wait(State::ready, site);
    } else {
      for (unsigned i = 0; i < wave.lanes; ++i)
        if (&lanes[i] != self) s.push(&lanes[i]);
    }
  } else {
    s.wait(State::in_wave, site);
  }
  return wave.given[parity];
}

unsigned lanes_of_wave() {
  const Scheduler& s = scheduler();
  return s.waves[s.running->position.wave].lanes;
}

void interleave() {
  Scheduler& s = scheduler();
  if (!s.order.random()) return;
  s.push(s.running);
  s.wait(State::ready, {"", "", 0});
}

}  // namespace emulation

void emulation_set_lane_order(unsigned long long seed) { emulation::scheduler().order.set(seed); }
