/* SPDX-License-Identifier: MIT */
/*
 * The one table. Included several times, with the macros that the reader wants; the
 * others are empty. Beside CASE there is the product of every SCHEME with every
 * FUNCTION (bf16 rows), and with every TYPES (silu): names like int4_g32/silu/bf16.
 */
/* clang-format off */
#ifndef SCHEME
#define SCHEME(...)
#endif
#ifndef FUNCTION
#define FUNCTION(...)
#endif
#ifndef TYPES
#define TYPES(...)
#endif
#ifndef CASE
#define CASE(...)
#endif
#ifndef BENCH
#define BENCH(...)
#endif

/* A projection: weight, scale, group_size, zero_points, column_groups, bias, input_scale */
#define INT4(scale, group, zero, order, bias) { MOEK_INT4, scale, group, zero, order, bias, 0, 0 }
#define INT8(scale, group, zero)              { MOEK_INT8, scale, group, zero, 0, 0, 0, 0 }
#define MX(bias, input)                       { MOEK_MXFP4, MOEK_E8M0, 32, 0, 0, bias, input, 0 }
#define ROWS(type, bias)                      { type, 0, 0, 0, 0, bias, 0, 0 }

/*     name            gate_up                          down */
SCHEME(int4_g32,       INT4(MOEK_BF16, 32, 0, 0, 0),    INT4(MOEK_BF16, 32, 0, 0, 0))
SCHEME(int4_g64,       INT4(MOEK_F16, 64, 0, 0, 0),     INT4(MOEK_F16, 64, 0, 0, 0))
SCHEME(int4_g128,      INT4(MOEK_BF16, 128, 0, 0, 0),   INT4(MOEK_BF16, 128, 0, 0, 0))
SCHEME(int4_g32_asym,  INT4(MOEK_BF16, 32, 1, 0, 0),    INT4(MOEK_BF16, 32, 1, 0, 0))
SCHEME(int4_g128_asym, INT4(MOEK_F16, 128, 1, 0, 0),    INT4(MOEK_F16, 128, 1, 0, 0))
SCHEME(int4_channel,   INT4(MOEK_F32, 0, 0, 0, 0),      INT4(MOEK_F32, 0, 0, 0, 0))
SCHEME(int4_channel_asym, INT4(MOEK_F32, 0, 1, 0, 0),   INT4(MOEK_F32, 0, 1, 0, 0))
SCHEME(int4_g16,       INT4(MOEK_BF16, 16, 0, 0, 0),    INT4(MOEK_BF16, 16, 0, 0, 0))
SCHEME(int4_order,     INT4(MOEK_BF16, 32, 1, 1, 0),    INT4(MOEK_BF16, 32, 1, 1, 0))
SCHEME(int4_bias,      INT4(MOEK_BF16, 32, 1, 0, 1),    INT4(MOEK_BF16, 32, 1, 0, 1))
SCHEME(int8_channel,   INT8(MOEK_F32, 0, 0),            INT8(MOEK_F32, 0, 0))
SCHEME(int8_g32_asym,  INT8(MOEK_BF16, 32, 1),          INT8(MOEK_BF16, 32, 1))
SCHEME(mxfp4,          MX(0, 0),                        MX(0, 0))
SCHEME(mxfp4_bias,     MX(1, 0),                        MX(1, 0))
SCHEME(mxfp4_static,   MX(0, 1),                        MX(0, 1))
SCHEME(bf16,           ROWS(MOEK_BF16, 0),              ROWS(MOEK_BF16, 0))
SCHEME(fp16_bias,      ROWS(MOEK_F16, 1),               ROWS(MOEK_F16, 1))
SCHEME(fp32,           ROWS(MOEK_F32, 0),               ROWS(MOEK_F32, 0))
SCHEME(mixed,          MX(0, 0),                        INT4(MOEK_BF16, 32, 0, 0, 1))

/*       name           function          gated  alpha   beta  limit */
FUNCTION(silu,          MOEK_SILU,        1,     0,      0,    0)
FUNCTION(silu_limit,    MOEK_SILU,        1,     0,      0,    0.75f)
FUNCTION(silu_alone,    MOEK_SILU,        0,     0,      0,    0)
FUNCTION(gelu,          MOEK_GELU,        1,     0,      0,    0)
FUNCTION(gelu_alone,    MOEK_GELU,        0,     0,      0,    0)
FUNCTION(gelu_tanh,     MOEK_GELU_TANH,   1,     0,      0,    0)
FUNCTION(relu2,         MOEK_RELU2,       0,     0,      0,    0)
FUNCTION(oai,           MOEK_SWIGLU_OAI,  1,     1.702f, 1,    1.5f)
FUNCTION(oai_no_limit,  MOEK_SWIGLU_OAI,  1,     1.702f, 1,    0)
FUNCTION(oai_plain,     MOEK_SWIGLU_OAI,  1,     1,      0,    2)
FUNCTION(step,          MOEK_SWIGLU_STEP, 1,     0,      0,    0.5f)
FUNCTION(situ,          MOEK_SITU,        1,     4,      25,   0)
FUNCTION(situ_plain_up, MOEK_SITU,        1,     1.5f,   0,    0)

/*    name        input      output */
TYPES(bf16,      MOEK_BF16, MOEK_BF16)
TYPES(f16,       MOEK_F16,  MOEK_F16)
TYPES(f32,       MOEK_F32,  MOEK_F32)
TYPES(bf16_f32,  MOEK_BF16, MOEK_F32)

/*   name               scheme         activations             function    types    experts top_k hidden intermediate tokens twist */
CASE(one_of_everything, int4_g32,      MOEK_A16,               silu,       f32,      1,  1,   1,   1,   1, 0)
CASE(odd_sizes,         int4_g32_asym, MOEK_A16,               silu,       bf16,     3,  2, 131,  77,   5, 0)
CASE(odd_sizes_channel, int4_channel,  MOEK_A16,               silu,       f32,      3,  2,  37,  53,   5, 0)
CASE(short_groups,      int4_g128,     MOEK_A16,               silu,       bf16,     4,  2, 160, 200,   6, 0)
CASE(short_groups_asym, int4_g128_asym, MOEK_A16,              silu,       f16,      4,  2, 130, 254,   6, 0)
CASE(short_blocks,      mxfp4,         MOEK_A16,               silu,       bf16,     4,  2,  80,  48,   6, 0)
CASE(gpt_oss_shape,     mxfp4_bias,    MOEK_A16,               oai,        bf16,    32,  4, 288, 288,   9, 0)
CASE(qwen3_shape,       int4_g32,      MOEK_A16,               silu,       bf16,    32,  8, 256,  96,   9, 0)
CASE(kimi_shape,        int4_g32,      MOEK_A16,               silu,       bf16,    96, 16, 128,  64,   5, 0)
CASE(decode,            int4_g32,      MOEK_A16,               silu,       bf16,    16,  8, 256, 128,   1, 0)
CASE(decode_mxfp4,      mxfp4,         MOEK_A16,               silu,       bf16,    16,  4, 256, 128,   1, 0)
CASE(two_tokens,        int4_g32,      MOEK_A16,               silu,       f16,      4,  2,  64,  64,   2, 0)
CASE(three_tokens,      int4_g32,      MOEK_A16,               silu,       bf16,     4,  2,  64,  64,   3, 0)
CASE(prime_tokens,      int4_g32,      MOEK_A16,               silu,       bf16,     4,  2,  64,  64,  61, 0)
CASE(many_tokens,       int4_g32,      MOEK_A16,               silu,       bf16,     4,  2,  64,  32, 257, 0)
CASE(many_tokens_mxfp4, mxfp4,         MOEK_A16,               silu,       f16,      4,  2,  64,  32, 257, 0)
CASE(many_tokens_f32,   int4_g32_asym, MOEK_A16,               silu,       f32,      4,  2,  64,  32, 130, 0)
CASE(long_batch,        int4_g32,      MOEK_A16,               silu,       bf16,     4,  1,  32,  32, 1100, 0)
CASE(idle_experts,      int4_g32,      MOEK_A16,               silu,       bf16,    64,  1,  64,  32,   3, 0)
CASE(top_k_all,         int4_g32,      MOEK_A16,               silu,       bf16,     5,  5,  64,  32,   4, 0)
CASE(top_k_one,         mxfp4,         MOEK_A16,               silu,       bf16,     5,  1,  64,  32,   7, 0)
CASE(one_expert,        int4_g32,      MOEK_A16,               silu,       bf16,     1,  1,  96,  64,  33, 0)
CASE(all_to_one,        int4_g32,      MOEK_A16,               silu,       bf16,     8,  2,  64,  64,  40, TWIST_ONE_EXPERT)
CASE(all_to_last,       mxfp4,         MOEK_A16,               silu,       bf16,     8,  1,  64,  64,  40, TWIST_ONE_EXPERT)
CASE(duplicate_ids,     int4_g32,      MOEK_A16,               silu,       bf16,     4,  3,  64,  64,   8, TWIST_DUPLICATES)
CASE(ids_outside,       int4_g32,      MOEK_A16,               silu,       bf16,     4,  3,  64,  64,  11, TWIST_OUTSIDE)
CASE(ids_outside_mxfp4, mxfp4_bias,    MOEK_A16,               oai,        f32,      4,  3,  64,  64,  11, TWIST_OUTSIDE)
CASE(nobody_routed,     int4_bias,     MOEK_A16,               silu,       bf16,     4,  2,  64,  64,   3, TWIST_NOBODY)
CASE(zero_tokens,       int4_g32,      MOEK_A16,               silu,       bf16,     4,  2,  64,  64,   0, 0)
CASE(zero_weights,      int4_g32,      MOEK_A16,               silu,       bf16,     4,  2,  64,  64,   5, TWIST_ZERO_WEIGHTS)
CASE(strided_rows,      int4_g32,      MOEK_A16,               silu,       bf16,     4,  2,  64,  64,   7, TWIST_STRIDE)
CASE(expert_map,        int4_g32,      MOEK_A16,               silu,       bf16,     9,  3,  64,  64,  12, TWIST_MAP)
CASE(expert_map_bias,   mxfp4_bias,    MOEK_A16,               oai,        bf16,     9,  3,  64,  64,  12, TWIST_MAP)
CASE(weight_on_input,   int4_g32,      MOEK_A16,               silu,       bf16,     4,  1,  64,  64,   6, TWIST_ON_INPUT)
CASE(weight_on_input_f32, mxfp4,       MOEK_A16,               silu,       f32,      4,  1,  64,  64,   6, TWIST_ON_INPUT)
CASE(zero_scales,       int4_g32_asym, MOEK_A16,               silu,       bf16,     4,  2, 160,  96,   5, TWIST_ZERO_SCALES)
CASE(zero_scales_mxfp4, mxfp4,         MOEK_A16,               silu,       bf16,     4,  2, 160,  96,   5, TWIST_ZERO_SCALES)
CASE(extreme_scales,    mxfp4,         MOEK_A16,               silu,       f32,      4,  2, 160,  96,   5, TWIST_EXTREME)
CASE(largest_codes,     int4_g32,      MOEK_A16,               silu,       bf16,     4,  2, 160,  96,   5, TWIST_LARGEST)
CASE(largest_mxfp4,     mxfp4,         MOEK_A16,               silu,       bf16,     4,  2, 160,  96,   5, TWIST_LARGEST)
CASE(nan_token,         int4_g32,      MOEK_A16,               silu,       bf16,     4,  2,  64,  64,   9, TWIST_NAN_TOKEN)
CASE(nan_token_mxfp4,   mxfp4,         MOEK_A16,               silu,       f32,      4,  2,  64,  64,   9, TWIST_NAN_TOKEN)
CASE(nan_scale,         mxfp4,         MOEK_A16,               silu,       bf16,     4,  2,  96,  64,   9, TWIST_NAN_SCALE)
CASE(gate_interleaved,  mxfp4_bias,    MOEK_A16,               oai,        bf16,     4,  2,  96,  64,   5, TWIST_INTERLEAVED)
CASE(gate_up_first,     mxfp4_bias,    MOEK_A16,               silu,       bf16,     4,  2,  96,  64,   5, TWIST_UP_FIRST)
CASE(gate_first_packed, int4_g32,      MOEK_A16,               silu,       bf16,     4,  2,  96,  64,   5, TWIST_GATE_FIRST)
CASE(interleaved_packed, int4_g32,     MOEK_A16,               silu,       bf16,     4,  2,  96,  64,   5, TWIST_INTERLEAVED)
CASE(interleaved_rows,  bf16,          MOEK_A16,               silu,       bf16,     4,  2,  96,  64,   5, TWIST_INTERLEAVED)
CASE(a4_even,           mxfp4,         MOEK_A4_MXFP4_EVEN,     silu,       bf16,     4,  2, 128,  96,   7, 0)
CASE(a4_even_oai,       mxfp4_bias,    MOEK_A4_MXFP4_EVEN,     oai,        f32,      4,  2, 128,  96,   7, 0)
CASE(a4_round_up,       mxfp4,         MOEK_A4_MXFP4_ROUND_UP, silu,       bf16,     4,  2, 128,  96,   7, 0)
CASE(a4_short_block,    mxfp4,         MOEK_A4_MXFP4_EVEN,     silu,       f32,      4,  2,  72,  40,   7, 0)
CASE(a4_nan_token,      mxfp4,         MOEK_A4_MXFP4_EVEN,     silu,       bf16,     4,  2,  64,  64,   9, TWIST_NAN_TOKEN)
CASE(a4_int4,           int4_g32,      MOEK_A4_MXFP4_EVEN,     silu,       bf16,     4,  2, 128,  96,   7, 0)
CASE(a8_fp8,            mxfp4_static,  MOEK_A8_FP8_STATIC,     silu,       bf16,     4,  2, 128,  96,   7, 0)
CASE(a8_int8,           int4_g32,      MOEK_A8_INT8,           silu,       bf16,     4,  2, 128,  96,   7, 0)
CASE(a8_int8_asym,      int4_g32_asym, MOEK_A8_INT8,           silu,       f32,      4,  2, 128,  96,   7, 0)
CASE(a8_int8_mxfp4,     mxfp4,         MOEK_A8_INT8,           silu,       bf16,     4,  2, 128,  96,   7, 0)
CASE(a8_int8_many,      int4_g32,      MOEK_A8_INT8,           silu,       bf16,     4,  2, 128,  64,  70, 0)
CASE(a8_int8_nan,       int4_g32,      MOEK_A8_INT8,           silu,       bf16,     4,  2,  64,  64,   9, TWIST_NAN_TOKEN)

/*    name                  scheme      activations   function types experts top_k hidden intermediate tokens */
BENCH(qwen3_30b_decode,     int4_g32,   MOEK_A16,     silu,    bf16,  128, 8, 2048,  768,    1)
BENCH(qwen3_30b_decode_8,   int4_g32,   MOEK_A16,     silu,    bf16,  128, 8, 2048,  768,    8)
BENCH(qwen3_30b_prefill,    int4_g32,   MOEK_A16,     silu,    bf16,  128, 8, 2048,  768,  256)
BENCH(qwen3_30b_a8_decode,  int4_g32,   MOEK_A8_INT8, silu,    bf16,  128, 8, 2048,  768,    1)
BENCH(gpt_oss_20b_decode,   mxfp4_bias, MOEK_A16,     oai,     bf16,   32, 4, 2880, 2880,    1)
BENCH(gpt_oss_20b_decode_8, mxfp4_bias, MOEK_A16,     oai,     bf16,   32, 4, 2880, 2880,    8)
BENCH(gpt_oss_20b_prefill,  mxfp4_bias, MOEK_A16,     oai,     bf16,   32, 4, 2880, 2880,  128)

#undef INT4
#undef INT8
#undef MX
#undef ROWS
#undef SCHEME
#undef FUNCTION
#undef TYPES
#undef CASE
#undef BENCH
/* clang-format on */
