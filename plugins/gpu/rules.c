/* SPDX-License-Identifier: MIT */
#include "rules.h"

#include <string.h>

#include "args.h"

_Static_assert(GPU_F32 == (int)MOEK_F32 && GPU_F16 == (int)MOEK_F16 &&
                       GPU_BF16 == (int)MOEK_BF16 && GPU_E8M0 == (int)MOEK_E8M0,
               "types");
_Static_assert(GPU_SILU == (int)MOEK_SILU && GPU_GELU == (int)MOEK_GELU &&
                       GPU_GELU_TANH == (int)MOEK_GELU_TANH &&
                       GPU_SWIGLU_OAI == (int)MOEK_SWIGLU_OAI &&
                       GPU_SWIGLU_STEP == (int)MOEK_SWIGLU_STEP &&
                       GPU_SITU == (int)MOEK_SITU,
               "activations");

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

enum { MOST_TOP_K = 128, MOST_EXPERTS = 16384 };

/* "gfx1100, gfx1101": what this file has code for */
static void note_archs(const struct gpu_image *images, struct moek_verdict *no_out)
{
	const struct gpu_image *image;
	char note[sizeof(no_out->note)] = "";

	for (image = images; image->arch != NULL; image++) {
		if (strlen(note) + strlen(image->arch) + 3 > sizeof(note))
			break;
		if (note[0] != '\0')
			strcat(note, ", ");
		strcat(note, image->arch);
	}
	moek_refuse_note(no_out,
	                 note[0] != '\0' ? note : "built without a GPU compiler");
}

int32_t gpu_supports_device(const struct gpu_image *images,
                            const struct moek_device *device,
                            struct moek_verdict *no_out)
{
	if (device->kind != MOEK_HIP)
		return moek_refuse(no_out, MOEK_RULE_DEVICE_KIND, device->kind);
	if (gpu_find_image(images, device->arch) != NULL)
		return 1;
	moek_refuse(no_out, MOEK_RULE_DEVICE_ARCH, 0);
	note_archs(images, no_out);
	return 0;
}

int32_t gpu_supports_both(const struct moek_problem *problem,
                          int32_t (*supports)(const struct moek_scheme *scheme,
                                              struct moek_verdict *no_out),
                          struct moek_verdict *no_out)
{
	if (!supports(&problem->gate_up, no_out)) {
		no_out->projection = MOEK_GATE_UP;
		return 0;
	}
	if (!supports(&problem->down, no_out)) {
		no_out->projection = MOEK_DOWN;
		return 0;
	}
	return 1;
}

int32_t gpu_supports_mxfp4(const struct moek_scheme *scheme,
                           struct moek_verdict *no_out)
{
	static const uint64_t weight[] = { MOEK_MXFP4 }, scale[] = { MOEK_E8M0 };
	static const uint64_t group[] = { 32 };

	if (scheme->weight != MOEK_MXFP4)
		return moek_refuse_values(no_out, MOEK_RULE_WEIGHT, scheme->weight,
		                          weight, 1);
	if (scheme->scale != MOEK_E8M0)
		return moek_refuse_values(no_out, MOEK_RULE_SCALE, scheme->scale, scale,
		                          1);
	if (scheme->group_size != 32)
		return moek_refuse_values(no_out, MOEK_RULE_GROUP_SIZE,
		                          scheme->group_size, group, 1);
	if (scheme->zero_points)
		return moek_refuse(no_out, MOEK_RULE_ZERO_POINTS, 1);
	if (scheme->column_groups)
		return moek_refuse(no_out, MOEK_RULE_COLUMN_GROUPS, 1);
	return 1;
}

int32_t gpu_supports_types(const struct moek_problem *problem, int singles,
                           struct moek_verdict *no_out)
{
	static const uint64_t inputs[] = { MOEK_F16, MOEK_BF16, MOEK_F32 };
	static const uint64_t outputs[] = { MOEK_F16, MOEK_BF16, MOEK_F32 };

	if (problem->input_type != MOEK_F16 && problem->input_type != MOEK_BF16 &&
	    !(singles && problem->input_type == MOEK_F32))
		return moek_refuse_values(no_out, MOEK_RULE_INPUT_TYPE,
		                          problem->input_type, inputs, singles ? 3 : 2);
	if (problem->output_type != MOEK_F16 && problem->output_type != MOEK_BF16 &&
	    problem->output_type != MOEK_F32)
		return moek_refuse_values(no_out, MOEK_RULE_OUTPUT_TYPE,
		                          problem->output_type, outputs,
		                          COUNT(outputs));
	return 1;
}

int32_t gpu_supports_activation(void *plugin, const struct moek_problem *problem,
                                struct moek_verdict *no_out)
{
	static const uint64_t functions[] = { MOEK_SILU,        MOEK_GELU,
		                              MOEK_GELU_TANH,   MOEK_SWIGLU_OAI,
		                              MOEK_SWIGLU_STEP, MOEK_SITU };
	uint32_t i;

	(void)plugin;
	if (!problem->gated)
		return moek_refuse(no_out, MOEK_RULE_GATED, 0);
	for (i = 0; i < COUNT(functions); i++)
		if (problem->activation == functions[i])
			break;
	if (i == COUNT(functions))
		return moek_refuse_values(no_out, MOEK_RULE_ACTIVATION,
		                          problem->activation, functions,
		                          COUNT(functions));
	if (problem->activation == MOEK_SITU && problem->limit != 0.0f) {
		/* its formula has no clamp: dropping the limit would be silent */
		moek_refuse(no_out, MOEK_RULE_LIMIT, 1);
		return moek_refuse_note(no_out, "situ has no limit");
	}
	return 1;
}

int32_t gpu_supports_parallel(void *plugin, const struct moek_problem *problem,
                              struct moek_verdict *no_out)
{
	(void)plugin;
	if ((problem->must_understand & MOEK_WEIGHT_ON_INPUT) != 0 &&
	    problem->top_k != 1)
		return moek_refuse_above(no_out, MOEK_RULE_WEIGHT_ON_INPUT,
		                         problem->top_k, 1);
	if ((problem->must_understand & MOEK_ROW_STRIDE) != 0)
		return moek_refuse(no_out, MOEK_RULE_ROW_STRIDE, 1);
	if ((problem->must_understand & MOEK_LORA) != 0)
		return moek_refuse(no_out, MOEK_RULE_LORA, 1);
	return 1;
}

int32_t gpu_supports_shape(void *plugin, const struct moek_problem *problem,
                           struct moek_verdict *no_out)
{
	(void)plugin;
	/* kernels index the codes of one projection with 32 bits */
	const uint64_t most = UINT64_C(1) << 30;

	if (problem->hidden == 0 || problem->hidden % 32 != 0)
		return moek_refuse_multiple(no_out, MOEK_RULE_HIDDEN, problem->hidden,
		                            32);
	if (problem->intermediate == 0 || problem->intermediate % 32 != 0)
		return moek_refuse_multiple(no_out, MOEK_RULE_INTERMEDIATE,
		                            problem->intermediate, 32);
	if (problem->top_k == 0 || problem->top_k > MOST_TOP_K)
		return moek_refuse_above(no_out, MOEK_RULE_TOP_K, problem->top_k,
		                         MOST_TOP_K);
	if (problem->experts > MOST_EXPERTS)
		return moek_refuse_above(no_out, MOEK_RULE_EXPERTS, problem->experts,
		                         MOST_EXPERTS);
	if (problem->hidden > most / problem->intermediate)
		return moek_refuse_above(no_out, MOEK_RULE_INDEX_RANGE, problem->hidden,
		                         most / problem->intermediate);
	return 1;
}
