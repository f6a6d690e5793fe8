// A stack of its own that can be switched to and from, without a system call.
#pragma once

#include <cstddef>

namespace emulation {

class Fiber {
 public:
  Fiber() = default;                // stands for the stack that the caller is on
  explicit Fiber(void (*entry)());  // `entry` starts at the first switch and must never return
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Forgets where the fiber stood: the next switch starts `entry` again.
  void restart();

  // Leaves `from`, which is running, and continues `to`. Returns when somebody switches back.
  static void switch_stacks(Fiber& from, Fiber& to);

 private:
  static void begin();
  void arrived();

  void (*entry_)() = nullptr;
  void* saved_ = nullptr;        // the stack pointer, or the ucontext where no assembly is written
  void* mapping_ = nullptr;      // the stack, below it a guard page
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
  void* fake_stack_ = nullptr;   // AddressSanitizer's
  static Fiber* from_;
  static Fiber* to_;
};

}  // namespace emulation
