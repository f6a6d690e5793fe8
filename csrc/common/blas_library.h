// What the BLAS libraries have in common once they are loaded. Host only.
#pragma once

#include "common/blas.h"

#include <dlfcn.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace qwen3tts {

// A library of the process. It is never closed: its handles may live until the process ends.
class DynamicLibrary {
 public:
  // The first of `names` that is loaded already, else the first that the loader finds. `tried` gets the loader's answers.
  static DynamicLibrary find(const std::vector<std::string>& names, std::string& tried) {
    for (const std::string& name : names)
      if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return {handle, name};
    for (const std::string& name : names) {
      if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return {handle, name};
      const char* reason = dlerror();
      tried += "\n  " + (reason != nullptr ? std::string(reason) : name);
    }
    return {nullptr, ""};
  }

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }

  // nullptr if there is none.
  template <class Function> Function* find_symbol(const char* symbol) const {
    return reinterpret_cast<Function*>(dlsym(handle_, symbol));
  }
  template <class Function> Function* symbol(const char* symbol) const {
    if (Function* found = find_symbol<Function>(symbol)) return found;
    throw std::runtime_error(name_ + " has no " + symbol + ": expected a BLAS library of another version");
  }

 private:
  DynamicLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  void* handle_;
  std::string name_;
};

// One loaded library and one handle. The column-major calls are hidden here: a row-major C = A B is C^T = B^T A^T.
class BlasLibrary {
 public:
  virtual ~BlasLibrary() = default;
  virtual std::string description() const = 0;
  // For all calls that follow. In this order: cuBLAS forgets the workspace when the stream is set.
  virtual void set_stream(void* stream) = 0;
  virtual void set_workspace(void* memory, std::size_t bytes) = 0;
  virtual void gemm(const Gemm& gemm) = 0;
};

inline void check_status(int status, const std::string& what) {
  if (status != 0) throw std::runtime_error(what + " failed with status " + std::to_string(status));
}

// Blas over a library. `Runtime` has static current_device(), set_device(int), allocate(bytes) and release(pointer).
template <class Runtime> class DeviceBlas : public Blas {
 public:
  template <class OpenLibrary> DeviceBlas(int device, std::size_t bytes, OpenLibrary open) : device_(device), bytes_(bytes) {
    const OnDevice guard(device_);
    library_ = open();
    workspace_ = Runtime::allocate(bytes_);
  }
  ~DeviceBlas() override {
    library_.reset();  // waits for its work
    Runtime::release(workspace_);
  }
  DeviceBlas(const DeviceBlas&) = delete;
  DeviceBlas& operator=(const DeviceBlas&) = delete;

  void gemm(const Gemm& gemm, void* stream) override {
    check_gemm(gemm);
    if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const OnDevice guard(device_);
    library_->set_stream(stream);
    library_->set_workspace(workspace_, bytes_);
    library_->gemm(gemm);
  }
  std::string library() const override { return library_->description(); }

 private:
  struct OnDevice {
    explicit OnDevice(int device) : before(Runtime::current_device()), changed(device != before) {
      if (changed) Runtime::set_device(device);
    }
    ~OnDevice() {
      if (changed) Runtime::set_device(before);
    }
    int before;
    bool changed;
  };

  int device_;
  std::size_t bytes_;
  std::unique_ptr<BlasLibrary> library_;
  void* workspace_ = nullptr;
  std::mutex mutex_;
};

}  // namespace qwen3tts
