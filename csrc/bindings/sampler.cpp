#include "common/sampler.h"

#include "bindings/module.h"

namespace qwen3tts {
namespace {

void call(std::uintptr_t logits, std::int64_t row_stride, std::int32_t rows, std::int32_t vocab, std::uintptr_t params,
          std::uintptr_t frames, std::int32_t codebook, std::uintptr_t seen, std::uintptr_t suppressed,
          std::int32_t eos_id, std::uintptr_t picks, std::uintptr_t status, std::uintptr_t stream) {
  sample({static_cast<const float*>(pointer(logits)), row_stride, rows, vocab,
          static_cast<const SamplerRow*>(pointer(params)), static_cast<const std::int32_t*>(pointer(frames)), codebook,
          static_cast<std::uint8_t*>(pointer(seen)), static_cast<const std::uint8_t*>(pointer(suppressed)), eos_id,
          static_cast<std::int64_t*>(pointer(picks)), static_cast<std::int32_t*>(pointer(status))},
         pointer(stream));
}

void call_weights(std::uintptr_t x, std::uintptr_t weights, std::int64_t count, std::uintptr_t stream) {
  sampler_weights(static_cast<const float*>(pointer(x)), static_cast<std::int64_t*>(pointer(weights)), count,
                  pointer(stream));
}

}  // namespace

void bind_sampler(pybind11::module_& m) {
  using pybind11::arg;
  m.def("sample", &call, arg("logits"), arg("row_stride"), arg("rows"), arg("vocab"), arg("params"), arg("frames"),
        arg("codebook"), arg("seen"), arg("suppressed"), arg("eos_id"), arg("picks"), arg("status"), arg("stream"),
        "See csrc/common/sampler.h; seen, suppressed and status may be 0.");
  m.def("sampler_weights", &call_weights, arg("x"), arg("weights"), arg("count"), arg("stream"),
        "floor(2^24 exp(x)) of fp32 [count] as int64.");
  m.attr("sampler_row_bytes") = sizeof(SamplerRow);
  m.attr("sampler_max_vocab") = kSamplerMaxVocab;
}

}  // namespace qwen3tts
