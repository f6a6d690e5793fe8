// Structures that arrive as dicts: whole numbers (pointers are some), lists and dicts, by the names of their C++ fields.
#pragma once

#include "bindings/module.h"
#include "common/types.h"

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace qwen3tts {

// Reads every field once; `done` refuses what was not asked for, so a misspelt name is never ignored.
class Fields {
 public:
  Fields(pybind11::dict fields, std::string name) : fields_(std::move(fields)), name_(std::move(name)) {}

  pybind11::object get(const char* field) {
    if (!fields_.contains(field)) throw std::invalid_argument(name_ + ": the field " + field + " is missing");
    read_.insert(field);
    return fields_[field];
  }
  template <class Value> Value number(const char* field) {
    const pybind11::object value = get(field);
    try {
      return value.cast<Value>();
    } catch (const pybind11::cast_error&) {
      throw std::invalid_argument(name_ + ": " + field + " is " + pybind11::repr(value).cast<std::string>() +
                                  ", expected a number that fits");
    }
  }
  template <class Pointer> void pointer(const char* field, Pointer*& to) {
    to = static_cast<Pointer*>(qwen3tts::pointer(number<std::uintptr_t>(field)));
  }
  void int32(const char* field, std::int32_t& to) { to = number<std::int32_t>(field); }
  DType dtype(const char* field) { return dtype_of(number<int>(field)); }
  Fields nested(const char* field) { return Fields(get(field).cast<pybind11::dict>(), name_ + "." + field); }
  std::vector<Fields> list(const char* field) {
    std::vector<Fields> all;
    for (const auto item : get(field).cast<pybind11::list>())
      all.emplace_back(item.cast<pybind11::dict>(), name_ + "." + field + "[" + std::to_string(all.size()) + "]");
    return all;
  }
  std::vector<const void*> pointers(const char* field) {
    std::vector<const void*> all;
    for (const auto item : get(field).cast<pybind11::list>())
      all.push_back(qwen3tts::pointer(item.cast<std::uintptr_t>()));
    return all;
  }
  void done() const {
    for (const auto item : fields_) {
      const auto field = item.first.cast<std::string>();
      if (read_.count(field) == 0) throw std::invalid_argument(name_ + ": there is no field " + field);
    }
  }

 private:
  pybind11::dict fields_;
  std::string name_;
  std::set<std::string> read_;
};

}  // namespace qwen3tts
