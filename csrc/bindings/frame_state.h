// FrameState from a dict, for the bindings that take one.
#pragma once

#include "bindings/fields.h"
#include "common/decode/frame.h"

namespace qwen3tts {

FrameState frame_state(Fields fields);

}  // namespace qwen3tts
