// The decoder's side of the persistent kernel: where it can be used, and what it is given. The kernel itself is CUDA's
// alone (csrc/cuda/decode_persistent.cpp).
#include "common/decode/persistent.h"

#include <stdexcept>

namespace qwen3tts {

#ifdef QWEN3TTS_CUDA
std::string persistent_device_problem();  // of the kernel on the current device
void clear_persistent_exchange(void* exchange, void* stream);
#else
namespace {
std::string persistent_device_problem() { return "the persistent kernel exists for CUDA alone"; }
[[noreturn]] void unavailable() { throw std::logic_error("the persistent kernel exists for CUDA alone"); }
void clear_persistent_exchange(void*, void*) { unavailable(); }
}  // namespace
std::int64_t persistent_exchange_bytes() { return 0; }
void persistent_predictor(const PersistentArguments&, void*) { unavailable(); }
#endif

std::string persistent_predictor_problem(const DecoderDescription& d) {
  using Shape = PersistentShape;
  if (!d.persistent_predictor) return "it is switched off";
  if (d.dtype != DType::bf16) return "the model is not in bf16";
  const StackGeometry& g = d.predictor.geometry;
  bool fits = g.hidden == Shape::hidden && g.intermediate == Shape::intermediate && g.heads == Shape::heads &&
              g.kv_heads == Shape::kv_heads && g.head_dim == Shape::head_dim && g.layers == Shape::layers &&
              d.state.groups == Shape::passes + 1;
  for (const Head& head : d.heads) fits = fits && head.vocab == Shape::vocab && head.dtype == DType::bf16;
  return fits ? persistent_device_problem() : "the code predictor has not the released models' sizes";
}

void Decoder::predictor_at_once(void* stream) {
  PersistentArguments a{};
  for (std::size_t i = 0; i < d_.predictor.layers.size(); ++i) a.layers[i] = d_.predictor.layers[i];
  for (std::size_t i = 0; i < d_.heads.size(); ++i) {
    a.heads[i] = d_.heads[i].weight;
    a.inputs[i] = d_.inputs[i];
  }
  a.norm = d_.predictor.norm;
  a.cos = d_.predictor.cos;
  a.sin = d_.predictor.sin;
  a.eps = d_.predictor.geometry.eps;
  a.x = s_.predictor_x;
  a.active = s_.active;
  const KvPool& pool = d_.predictor.pool;
  a.pool = pool.base;
  a.pool_half = std::int64_t{pool.pages} * PersistentShape::kv_heads * pool.page * PersistentShape::head_dim;
  a.sampling = d_.state.predictor;
  a.frame = d_.state.frame;
  a.codes = d_.state.codes;
  a.status = d_.state.status;
  a.logits = kept_logits_ == nullptr ? nullptr : logits_of(1);
  a.logits_stride = std::int64_t{d_.state.slots} * d_.state.vocab;
  a.exchange = s_.exchange;
  a.timeout_ns = timeout_ns_;
  a.depth = kPersistentDepth;
  a.pinned = kPersistentPinned;
  a.fault = fault_;
  persistent_predictor(a, stream);
}

void Decoder::clear_exchange(void* stream) const {
  if (s_.exchange != nullptr) clear_persistent_exchange(s_.exchange, stream);
}

void Decoder::disturb_predictor(std::int32_t fault, std::int64_t timeout_ns) {
  if (fault < kFaultless || fault > kSilentBlock || timeout_ns < 1)
    throw std::invalid_argument("disturb_predictor: fault " + std::to_string(fault) + " and " + std::to_string(timeout_ns) +
                                " ns, expected 0 to 2 and at least 1");
  fault_ = fault;
  timeout_ns_ = timeout_ns;
}

}  // namespace qwen3tts
