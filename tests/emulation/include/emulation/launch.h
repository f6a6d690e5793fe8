// Kernel launches. Arguments are converted to the kernel's parameter types and copied at the launch, as on a card.
#pragma once

#include "emulation/host.h"
#include "emulation/threads.h"

#include <tuple>
#include <utility>

namespace emulation {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared, hipStream_t stream,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a launch gives every parameter of the kernel");
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  submit_launch(stream, {grid, block, shared, [kernel, values] { std::apply(kernel, values); }});
}

}  // namespace emulation

#define hipLaunchKernelGGL(kernel, grid, block, shared, stream, ...) \
  emulation::launch((kernel), (grid), (block), (shared), (stream), ##__VA_ARGS__)
