/* SPDX-License-Identifier: MIT */
/* A folder as AITER has it: its list of kernels for one function, and code objects. */
#ifndef MOEK_TESTS_GPU_AITER_FILES_H
#define MOEK_TESTS_GPU_AITER_FILES_H

#include <stddef.h>

/* the columns of the list, and rows of it as they are in AITER */
#define AITER_HEADER                                                                   \
	"knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n,flat\n"
#define AITER_SYMBOL(columns)                                                          \
	"_ZN5aiter50fmoe_bf16_pertokenMXfp4_g1u1_flat_novs_silu_16x" columns "E"
#define AITER_OBJECT(columns)                                                          \
	"fmoe_bf16_pertokenMXfp4_g1u1_flat_novs_silu_16x" columns ".co"
#define AITER_FLAT(columns, groups)                                                    \
	AITER_SYMBOL(columns)                                                          \
	"," AITER_OBJECT(columns) ",0,0,0," groups ",0,16," columns ",1\n"
/* what is passed over: sorted, and one that skips */
#define AITER_OTHERS                                                                   \
	"_ZN5aiter47fmoe_bf16_pertokenMXfp4_g1u1_vs_silu_2tg_32x256E,"                 \
	"fmoe_bf16_pertokenMXfp4_g1u1_vs_silu_2tg_32x256.co,0,1,0,2,0,32,256,0\n"      \
	"_ZN5aiter47fmoe_bf16_pertokenMXfp4_g1u1_flat_vs_silu_16x32E,"                 \
	"fmoe_bf16_pertokenMXfp4_g1u1_flat_vs_silu_16x32.co,0,1,0,2,0,16,32,1\n"
#define AITER_LIST                                                                     \
	AITER_HEADER AITER_OTHERS AITER_FLAT("128", "2") AITER_FLAT("256", "1")

/* makes @folder/@below/fmoe/silu with the list and two code objects with these bytes */
void aiter_files_create(const char *folder, const char *below, const char *list,
                        const void *code, size_t bytes);
/* the shortest code object: an ELF header that says gfx950 */
extern const unsigned char aiter_header[64];

#endif
