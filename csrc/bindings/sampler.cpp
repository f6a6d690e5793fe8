#include "common/sampler.h"

#include "bindings/module.h"

namespace qwen3tts {
namespace {

void call(std::uintptr_t logits, std::int64_t row_stride, std::int32_t rows, std::int32_t vocab, std::uintptr_t params,
          std::uintptr_t frames, std::int32_t codebook, std::uintptr_t seen, std::uintptr_t suppressed,
          std::int32_t eos_id, std::uintptr_t picks, std::uintptr_t status, std::uintptr_t stream, std::uintptr_t slots,
          std::int32_t frame_offset, std::uintptr_t codes, std::int64_t code_stride, std::uintptr_t table,
          std::uintptr_t gathered, std::int64_t row_bytes) {
  sample({static_cast<const float*>(pointer(logits)), row_stride, rows, vocab,
          static_cast<const SamplerRow*>(pointer(params)), static_cast<const std::int32_t*>(pointer(frames)), codebook,
          static_cast<std::uint8_t*>(pointer(seen)), static_cast<const std::uint8_t*>(pointer(suppressed)), eos_id,
          static_cast<std::int64_t*>(pointer(picks)), static_cast<std::int32_t*>(pointer(status)),
          static_cast<const std::int32_t*>(pointer(slots)), frame_offset, static_cast<std::int32_t*>(pointer(codes)),
          code_stride, pointer(table), pointer(gathered), row_bytes},
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
        arg("slots") = 0, arg("frame_offset") = 0, arg("codes") = 0, arg("code_stride") = 0, arg("table") = 0,
        arg("gathered") = 0, arg("row_bytes") = 0,
        "See csrc/common/sampler.h; seen, suppressed, status and what follows the stream may be 0.");
  m.def("sampler_weights", &call_weights, arg("x"), arg("weights"), arg("count"), arg("stream"),
        "floor(2^24 exp(x)) of fp32 [count] as int64.");
  m.attr("sampler_row_bytes") = sizeof(SamplerRow);
  m.attr("sampler_max_vocab") = kSamplerMaxVocab;
}

}  // namespace qwen3tts
