// Attention of a decoder layer: what lies between the product that makes q, k and v and the one that takes the result.
//
//   q, k   = rotated(norm(q or k of the row)), per head       RMSNorm and rotate of model/layers.py, with its roundings
//   cache  k and v of the row enter their slot's keys and values at the row's position p
//   out    = round(sum over positions 0..p of softmax(q k / sqrt(head_dim)) v)        in fp32, heads share kv heads
//
// qkv T [rows, (heads + 2 kv_heads) * head_dim]: query heads, keys, values. q_norm and k_norm T [head_dim]. cos and sin
// T [positions, head_dim] as RotaryTable holds them (sin is signed). out T [rows, heads * head_dim]. A row with slot -1
// is idle: nothing of it is written. head_dim 8, 16, 32, 64 or 128; heads per kv head 1, 2 or 4. qkv, out, norms, tables
// and caches begin at multiples of 16 bytes.
//
// All are dependent launches (common/launch.h), asynchronous, and raise std::invalid_argument for impossible arguments,
// std::runtime_error if a launch fails. Every row's position must be within the tables and its slot's pages.
//
// Order of sums. Positions 0..p are cut into kAttentionRuns runs, which are added in order, relative to the largest maximum.
// How, depends on p, head_dim, the dtype and the heads per kv head alone, so a row has the same bits alone and among others,
// in any slot and on any pages, and a prompt has those of one position at a time. The row's own position comes last.
//   Tensor cores (16-bit elements, head_dim 128, cards that have them): runs are chunks of 32 positions in turns, chunk c in
//   run c % kAttentionRuns; products as attention_mma.cpp says, with softmax relative to the largest score so far.
//   Elsewhere: a run is ceil((p + 1) / kAttentionRuns) positions, rounded up to 8 (the last ones may be short or empty). A
//   vector of 16 bytes is a lane's share of a head, so head_dim * sizeof(T) / 16 lanes (a team) take a position, and a group
//   of 32 lanes several at a time. One group takes a run: each of its teams every so-many'th position, with a maximum, a sum
//   and a weighted sum of its own in fp32 that are brought together in a fixed tree.
// The predictor's 16 positions are one run of teams, relative to the group's maximum from the start.
//
// Bytes that must move per row: keys and values of p + 1 positions of one layer.
#pragma once

#include "common/types.h"

#include <cstdint>

namespace qwen3tts {

constexpr std::int32_t kAttentionRuns = 16;
constexpr std::int32_t kPredictorPositions = 16;

// Keys and values of one layer: T [pages, kv_heads, page, head_dim] each.
struct KvPages {
  void *keys, *values;
  const std::int32_t* table;   // [slots, table_stride]: entry i of a slot is the page with positions page * i and up
  std::int32_t table_stride;
  std::int32_t page;           // positions: a power of two, 8 at least
};

struct AttentionArguments {
  const void* qkv;
  const void *q_norm, *k_norm;
  float eps;
  const void *cos, *sin;
  const std::int32_t *slot, *position;  // [rows]
  KvPages pages;
  void* out;                            // not used by store_kv
  void* workspace;                      // attention_workspace_bytes, zeroed once before its first use; not by store_kv
  std::int32_t rows, heads, kv_heads, head_dim;
  DType dtype;
  // Blocks that share a (row, kv head): 1, 2, 4, 8 or 16; 0: as many as are fastest, 4 to 1 by the number of rows and kv
  // heads. No effect on the result. 2 to 8 are a cluster where there are clusters (common/cluster.h).
  std::int32_t blocks;
  // The caller's word that slot, position, the page table and all positions before each row's own were written before the
  // latest launch of the stream that is not a dependent one (and not by that launch). They are read ahead of the wait
  // then. A chain of dependent launches is no such promise, however long: each may start as soon as the one ahead has
  // started, so the wait of this kernel alone says that an earlier one has ended.
  bool settled;
};

// Keys and values of the rows into their pages; rows may be several positions of one slot.
void store_kv(const AttentionArguments& arguments, void* stream);

// stored = false: stores the row's key and value too; each slot at most once among the rows.
// stored = true: they lie in the pages already, with those of all other rows (a prompt's positions side by side). Not
// with settled.
void talker_attention(const AttentionArguments& arguments, bool stored, void* stream);

// For launches of up to `rows` rows with the same `blocks`.
std::int64_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim,
                                       std::int32_t blocks = 0);

// The code predictor: at most 16 positions, all rows at the same one.
struct PredictorAttentionArguments {
  const void* qkv;               // T [count * rows, ...]: row c * rows + r is position first + c of row r
  const void *q_norm, *k_norm;
  float eps;
  const void *cos, *sin;         // T [kPredictorPositions, head_dim]
  const std::int32_t* slot;      // [rows]
  void *keys, *values;           // T [slots, kv_heads, kPredictorPositions, head_dim] each
  void* out;                     // T [count * rows, heads * head_dim]
  std::int32_t rows, heads, kv_heads, head_dim;
  std::int32_t first, count;     // new positions: first, or first and first + 1
  DType dtype;
  // The caller's word that slot[r] is r or -1, for each of the rows: keys and values need not wait for it to be read.
  bool in_order;
};
void predictor_attention(const PredictorAttentionArguments& arguments, void* stream);

}  // namespace qwen3tts
