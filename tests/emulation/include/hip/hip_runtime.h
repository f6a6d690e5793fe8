// HIP on the CPU: the part of HIP's API that this project's kernels and backend use, for g++ and for tests only.
//
// A GPU thread is a fiber; the blocks of a launch run one after another on the launching CPU thread, and every stream is
// synchronous. EMU_WAVE (32 or 64) is the width of a wave. What a card leaves undefined is made visible here:
//   shared memory and fresh allocations hold NaN patterns, for each block anew;
//   a shuffle from a lane that does not exist yields such a pattern too;
//   a barrier or wave operation that not all threads reach fails the launch, and the error says where they stand;
//   set_lane_order (emulation/host.h) or EMU_SEED=n makes threads and blocks take turns in a random order.
// It is no model of time, of the memory order between running blocks, or of AMD's runtime.
#pragma once

#include "emulation/device.h"
#include "emulation/host.h"
#include "emulation/launch.h"
