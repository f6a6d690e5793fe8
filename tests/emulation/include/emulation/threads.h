// The scheduler's face to device code: who runs, and where threads meet. Implemented in runtime/scheduler.cpp.
#pragma once

#include "emulation/types.h"

#include <functional>
#include <string>

namespace emulation {

constexpr int kMaxThreads = 1024;            // per block
constexpr std::size_t kMaxShared = 65536;    // bytes of shared memory per block: AMD's LDS
constexpr uint64_t kPoison = ~uint64_t{0};   // NaN as float, bf16 or fp16; -1 as an index

// A place where threads wait for each other. Two places differ when their line does.
struct Site {
  const char* operation;
  const char* file;
  int line;
};

struct Position {  // of the running thread
  uint3 thread;
  unsigned wave, lane;
};

struct Launch {
  dim3 grid, block;
  std::size_t dynamic_shared;
  std::function<void()> thread;  // what every thread runs
};

extern Position position;
extern uint3 block_index;
extern dim3 block_size, grid_size;
extern unsigned char* dynamic_shared;

// Runs all blocks. Returns an empty text, or what went wrong with whom.
std::string run(const Launch& launch);

void barrier(const Site& site);

// The end of the kernel ahead, in a dependent launch: see emulation_arrive_at_wait.
void wait_for_previous();

// Waits for all lanes of the wave. Returns what each of them gave, valid until the caller's next exchange; a lane that
// the block does not have gives kPoison.
const uint64_t* exchange(uint64_t given, const Site& site);

// Lanes of the running thread's wave that the block has.
unsigned lanes_of_wave();

// With a random lane order, lets another thread go first. Atomics call it.
void interleave();

}  // namespace emulation
