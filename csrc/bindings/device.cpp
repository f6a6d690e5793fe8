#include "bindings/module.h"
#include "common/device.h"

namespace qwen3tts {
namespace {

pybind11::list device_list() {
  pybind11::list all;
  for (const DeviceInfo& d : devices()) {
    pybind11::dict one;
    one["index"] = d.index;
    one["name"] = d.name;
    one["architecture"] = d.architecture;
    one["multiprocessors"] = d.multiprocessors;
    one["wave_size"] = d.wave_size;
    one["memory_bytes"] = d.memory_bytes;
    one["l2_bytes"] = d.l2_bytes;
    all.append(one);
  }
  return all;
}

pybind11::dict versions() {
  const RuntimeInfo info = runtime_info();
  pybind11::dict out;
  out["driver"] = info.driver;
  out["runtime"] = info.runtime;
  return out;
}

}  // namespace

void bind_device(pybind11::module_& m) {
  const BuildInfo& build = build_info();
  m.attr("platform") = build.platform;
  m.attr("toolkit") = build.toolkit;
  m.attr("runtime_major") = build.runtime_major;
  m.attr("architectures") = build.architectures;
  m.def("devices", &device_list, "One dict per GPU that this module's runtime sees; empty without GPU or driver.");
  m.def("versions", &versions, "Driver and runtime versions as numbers; driver is 0 where there is none.");
}

}  // namespace qwen3tts
