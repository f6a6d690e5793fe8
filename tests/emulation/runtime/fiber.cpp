#include "fiber.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// emulation_switch(void** save, void* load): keeps what a called function must keep, stores the stack pointer in *save
// and continues at `load`. Hidden, so that two modules in one process keep their own.
#if defined(__x86_64__)
#define EMU_ASSEMBLY 1
asm(R"(
    .text
    .globl emulation_switch
    .hidden emulation_switch
    .type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulation_switch, .-emulation_switch
)");
#elif defined(__aarch64__)
#define EMU_ASSEMBLY 1
asm(R"(
    .text
    .globl emulation_switch
    .hidden emulation_switch
    .type emulation_switch, %function
emulation_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size emulation_switch, .-emulation_switch
)");
#else
#define EMU_ASSEMBLY 0
#endif
#if EMU_ASSEMBLY
extern "C" void emulation_switch(void** save, void* load);
#endif

namespace emulation {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kStack = 256 * 1024;  // redzones make frames larger
#else
constexpr std::size_t kStack = 64 * 1024;
#endif

std::size_t page() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

Fiber* Fiber::from_ = nullptr;
Fiber* Fiber::to_ = nullptr;

Fiber::Fiber(void (*entry)()) : entry_(entry), size_(kStack) {
  mapping_ = mmap(nullptr, page() + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED || mprotect(mapping_, page(), PROT_NONE) != 0) throw std::bad_alloc();
  bottom_ = static_cast<unsigned char*>(mapping_) + page();
  restart();
}

Fiber::~Fiber() {
#if !EMU_ASSEMBLY
  delete static_cast<ucontext_t*>(saved_);
#endif
  if (mapping_ != nullptr) munmap(mapping_, page() + kStack);
}

void Fiber::restart() {
  fake_stack_ = nullptr;
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(bottom_, size_);  // what the frames that never returned left behind
#endif
#if EMU_ASSEMBLY
  auto** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(bottom_) + size_);
#if defined(__x86_64__)  // six registers, the address to return to, and none for begin() itself
  void** frame = top - 8;
  for (int i = 0; i < 8; ++i) frame[i] = nullptr;
  frame[6] = reinterpret_cast<void*>(&Fiber::begin);
#else
  void** frame = top - 20;
  for (int i = 0; i < 20; ++i) frame[i] = nullptr;
  frame[11] = reinterpret_cast<void*>(&Fiber::begin);  // x30
#endif
  saved_ = frame;
#else
  if (saved_ == nullptr) saved_ = new ucontext_t;
  auto* context = static_cast<ucontext_t*>(saved_);
  getcontext(context);
  context->uc_stack.ss_sp = const_cast<void*>(bottom_);
  context->uc_stack.ss_size = size_;
  context->uc_link = nullptr;
  makecontext(context, &Fiber::begin, 0);
#endif
}

void Fiber::switch_stacks(Fiber& from, Fiber& to) {
  from_ = &from;
  to_ = &to;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.size_);
#endif
#if EMU_ASSEMBLY
  emulation_switch(&from.saved_, to.saved_);
#else
  if (from.saved_ == nullptr) from.saved_ = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from.saved_), static_cast<ucontext_t*>(to.saved_));
#endif
  from.arrived();
}

// Runs on the fiber that was just switched to.
void Fiber::arrived() {
#ifdef __SANITIZE_ADDRESS__
  const void* bottom = nullptr;
  std::size_t size = 0;
  __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &size);
  if (from_->mapping_ == nullptr) {  // a stack that is not ours: learn where it lies
    from_->bottom_ = bottom;
    from_->size_ = size;
  }
#endif
}

void Fiber::begin() {
  to_->arrived();
  to_->entry_();
  std::abort();
}

}  // namespace emulation
