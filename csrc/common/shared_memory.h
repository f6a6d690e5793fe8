// How much of a multiprocessor's first-level memory its kernels want as shared memory, the rest being cache. A
// multiprocessor must be idle to change it, so kernels that shall overlap must agree. Host code.
#pragma once

namespace qwen3tts {

// Percent, for the dependent launches of this thread (common/launch.h, CUDA alone); -1: as the driver likes.
inline thread_local int shared_memory_percent = -1;

class SharedMemoryScope {
 public:
  explicit SharedMemoryScope(int percent) : before_(shared_memory_percent) { shared_memory_percent = percent; }
  ~SharedMemoryScope() { shared_memory_percent = before_; }
  SharedMemoryScope(const SharedMemoryScope&) = delete;
  SharedMemoryScope& operator=(const SharedMemoryScope&) = delete;

 private:
  int before_;
};

}  // namespace qwen3tts
