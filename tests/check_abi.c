/* SPDX-License-Identifier: MIT */
/* The binary interface against a golden file: offsets and sizes of every public struct,
 * values of every public constant. Once 1.0 is out, no line of the file may change.
 * "check_abi --print" writes the file that these headers would need. */
#include "config.h"

#include <check.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/moek.h>

/* clang-format off */
#define ENDS(constant, name, last)                                                       \
	_Static_assert(offsetof(struct moek_##name, last) +                                  \
	                       sizeof(((struct moek_##name *)0)->last) == constant,          \
	               #constant " is not the end of " #last);
ENDS(MOEK_PROBLEM_SIZE_1_0, problem, shards)
ENDS(MOEK_VERDICT_SIZE_1_0, verdict, note)
ENDS(MOEK_MATRIX_SIZE_1_0, matrix, input_scale)
ENDS(MOEK_DEVICE_SIZE_1_0, device, wave_size)
ENDS(MOEK_WORKERS_SIZE_1_0, workers, parallel_for)
ENDS(MOEK_HOST_SIZE_1_0, host, free)
ENDS(MOEK_SIZES_SIZE_1_0, sizes, gate_up_columns)
ENDS(MOEK_TRACE_SIZE_1_0, trace, quantised_input)
ENDS(MOEK_BATCH_SIZE_1_0, batch, trace)
ENDS(MOEK_NUMERICS_SIZE_1_0, numerics, text)
ENDS(MOEK_EXPERTS_SIZE_1_0, experts, destroy)
ENDS(MOEK_PLUGIN_SIZE_1_0, plugin, wait)
ENDS(MOEK_REGISTRY_OPTIONS_SIZE_1_0, registry_options, ignore_environment)
ENDS(MOEK_CANDIDATE_SIZE_1_0, candidate, verdict)
ENDS(MOEK_SOURCE_SIZE_1_0, source, close)
ENDS(MOEK_STACK_SIZE_1_0, stack, gate_order)
ENDS(MOEK_LAYER_OPTIONS_SIZE_1_0, layer_options, progress_self)
ENDS(MOEK_PLACING_SIZE_1_0, placing, loads)
ENDS(MOEK_FORWARD_SIZE_1_0, forward, trace)
ENDS(MOEK_SHADOW_SIZE_1_0, shadow, worst)
ENDS(MOEK_ROUTER_SIZE_1_0, router, expert_scale)
ENDS(MOEK_CONVERSION_SIZE_1_0, conversion, progress_self)
ENDS(MOEK_CHECKPOINT_OPTIONS_SIZE_1_0, checkpoint_options, family_file)
ENDS(MOEK_LAYER_INFO_SIZE_1_0, layer_info, shared_bytes)
ENDS(MOEK_TENSOR_SIZE_1_0, tensor, shape)

/** A field and where it lies. */
struct field {
	const char *owner, *name;
	size_t offset, bytes;
};

#define F(owner, name)                                                                   \
	{ #owner, #name, offsetof(struct moek_##owner, name),                                \
	  sizeof(((struct moek_##owner *)0)->name) }
static const struct field fields[] = {
	F(scheme, weight), F(scheme, scale), F(scheme, group_size),
	F(scheme, zero_points), F(scheme, column_groups), F(scheme, bias),
	F(scheme, input_scale), F(scheme, reserved),
	F(problem, struct_size), F(problem, activations),
	F(problem, must_understand), F(problem, experts), F(problem, experts_local),
	F(problem, top_k), F(problem, hidden), F(problem, intermediate),
	F(problem, max_tokens), F(problem, gate_up), F(problem, down),
	F(problem, input_type), F(problem, output_type), F(problem, activation),
	F(problem, gated), F(problem, alpha), F(problem, beta), F(problem, limit),
	F(problem, activations_group), F(problem, shard), F(problem, shards),
	F(verdict, struct_size), F(verdict, rule), F(verdict, found),
	F(verdict, accepted), F(verdict, accepts), F(verdict, count),
	F(verdict, projection), F(verdict, reserved), F(verdict, note),
	F(rows, data), F(rows, rows), F(rows, columns), F(rows, row_stride),
	F(rows, type), F(rows, space),
	F(matrix, struct_size), F(matrix, weight), F(matrix, rows),
	F(matrix, columns), F(matrix, group_size), F(matrix, codes),
	F(matrix, scales), F(matrix, zeros), F(matrix, column_group),
	F(matrix, bias), F(matrix, scale), F(matrix, input_scale),
	F(expert, gate), F(expert, up), F(expert, down),
	F(device, struct_size), F(device, kind), F(device, ordinal),
	F(device, cause_rule), F(device, uuid), F(device, pci), F(device, arch),
	F(device, name), F(device, cause), F(device, features),
	F(device, memory_bytes), F(device, compute_units), F(device, wave_size),
	F(workers, struct_size), F(workers, count), F(workers, self),
	F(workers, parallel_for),
	F(host, struct_size), F(host, reserved), F(host, self), F(host, log),
	F(host, option), F(host, alloc), F(host, free),
	F(sizes, struct_size), F(sizes, reserved), F(sizes, hidden),
	F(sizes, intermediate), F(sizes, gate_up_columns),
	F(buffer, name), F(buffer, elements), F(buffer, align), F(buffer, type),
	F(buffer, first_stage), F(buffer, last_stage), F(buffer, zeroed),
	F(buffer, per_worker), F(buffer, reserved),
	F(trace, struct_size), F(trace, filled), F(trace, gate_up),
	F(trace, activated), F(trace, slots), F(trace, magnitudes),
	F(trace, quantised_input),
	F(batch, struct_size), F(batch, buffer_count), F(batch, input),
	F(batch, output), F(batch, topk_ids), F(batch, topk_weights),
	F(batch, expert_map), F(batch, buffers), F(batch, stream), F(batch, workers),
	F(batch, trace),
	F(numerics, struct_size), F(numerics, accumulator), F(numerics, terms),
	F(numerics, roundings), F(numerics, repeatable), F(numerics, text),
	F(experts, struct_size), F(experts, rank_class), F(experts, name),
	F(experts, understands), F(experts, supports_device),
	F(experts, supports_quant_scheme), F(experts, supports_activation),
	F(experts, supports_parallel), F(experts, supports_shape),
	F(experts, problem_size), F(experts, workspace_shapes), F(experts, finalize),
	F(experts, numerics), F(experts, prepared_size), F(experts, create),
	F(experts, load_expert), F(experts, finish), F(experts, forward),
	F(experts, reduce), F(experts, destroy),
	F(plugin, struct_size), F(plugin, abi_major), F(plugin, abi_minor),
	F(plugin, name), F(plugin, version), F(plugin, options), F(plugin, experts),
	F(plugin, open), F(plugin, close), F(plugin, list), F(plugin, alloc),
	F(plugin, free), F(plugin, copy), F(plugin, wait),
	F(error, struct_size), F(error, status), F(error, rule), F(error, reserved),
	F(error, text),
	F(setting, section), F(setting, key), F(setting, value),
	F(registry_options, struct_size), F(registry_options, threads),
	F(registry_options, config_file), F(registry_options, settings),
	F(registry_options, setting_count), F(registry_options, plugin_dirs),
	F(registry_options, facts_file), F(registry_options, workers),
	F(registry_options, log), F(registry_options, log_self),
	F(registry_options, checks), F(registry_options, ignore_environment),
	F(candidate, struct_size), F(candidate, state), F(candidate, name),
	F(candidate, path), F(candidate, source), F(candidate, found),
	F(candidate, accepted), F(candidate, verdict),
	F(source, struct_size), F(source, reserved), F(source, self),
	F(source, scratch_bytes), F(source, expert), F(source, close),
	F(stack, struct_size), F(stack, layout), F(stack, codes),
	F(stack, codes_bytes), F(stack, scales), F(stack, scales_bytes),
	F(stack, zeros), F(stack, zeros_bytes), F(stack, bias), F(stack, bias_bytes),
	F(stack, bias_type), F(stack, gate_order),
	F(layer_options, struct_size), F(layer_options, reserved),
	F(layer_options, expert_map), F(layer_options, progress),
	F(layer_options, progress_self),
	F(placing, struct_size), F(placing, strided), F(placing, experts),
	F(placing, ranks), F(placing, most), F(placing, loads),
	F(forward, struct_size), F(forward, reserved), F(forward, input),
	F(forward, output), F(forward, topk_ids), F(forward, topk_weights),
	F(forward, stream), F(forward, workspace), F(forward, trace),
	F(shadow, struct_size), F(shadow, reserved), F(shadow, reference),
	F(shadow, every), F(shadow, forwards), F(shadow, compared),
	F(shadow, skipped), F(shadow, rows), F(shadow, rows_over), F(shadow, worst),
	F(router, struct_size), F(router, scoring), F(router, experts),
	F(router, top_k), F(router, score_chosen), F(router, renormalise),
	F(router, groups), F(router, groups_kept), F(router, scaling),
	F(router, epsilon), F(router, jitter), F(router, weight_on_input),
	F(router, bias), F(router, expert_scale),
	F(checkpoint_options, struct_size), F(checkpoint_options, reserved),
	F(checkpoint_options, shard), F(checkpoint_options, shards),
	F(checkpoint_options, family_file),
	F(layer_info, struct_size), F(layer_info, number), F(layer_info, name),
	F(layer_info, family), F(layer_info, format), F(layer_info, weight_bytes),
	F(layer_info, read_bytes),	F(layer_info, unrouted), F(layer_info, shared), F(layer_info, shared_bytes),
	F(tensor, struct_size), F(tensor, type), F(tensor, dtype), F(tensor, file),
	F(tensor, data), F(tensor, bytes), F(tensor, rank), F(tensor, reserved),
	F(tensor, shape),
};

/** A struct by its last field: nothing follows it but padding. */
#define S(owner, last)                                                                   \
	{ #owner, #last, offsetof(struct moek_##owner, last) +                               \
	                         sizeof(((struct moek_##owner *)0)->last),                   \
	  sizeof(struct moek_##owner) }
static const struct field structs[] = {
	S(scheme, reserved), S(problem, shards), S(verdict, note), S(rows, space),
	S(matrix, input_scale), S(expert, down), S(device, wave_size),
	S(workers, parallel_for), S(host, free), S(sizes, gate_up_columns),
	S(buffer, reserved), S(trace, quantised_input), S(batch, trace),
	S(numerics, text), S(experts, destroy), S(plugin, wait), S(error, text),
	S(setting, value), S(registry_options, ignore_environment),
	S(candidate, verdict), S(source, close), S(stack, gate_order),
	S(layer_options, progress_self), S(forward, trace), S(shadow, worst), S(router, expert_scale),
	S(checkpoint_options, family_file), S(layer_info, shared_bytes), S(tensor, shape),
};

#define V(name) { #name, (long long)(name) }
static const struct value {
	const char *name;
	long long value;
} values[] = {
	V(MOEK_OK), V(MOEK_BAD_ARGUMENT), V(MOEK_BUSY), V(MOEK_REFUSED),
	V(MOEK_BAD_CONFIG), V(MOEK_BAD_FILE), V(MOEK_NO_MEMORY), V(MOEK_DEVICE),
	V(MOEK_PLUGIN), V(MOEK_F32), V(MOEK_F16), V(MOEK_BF16), V(MOEK_F8_E4M3),
	V(MOEK_E8M0), V(MOEK_U8), V(MOEK_I32), V(MOEK_INT4), V(MOEK_MXFP4),
	V(MOEK_INT8), V(MOEK_A16), V(MOEK_A8_FP8_STATIC), V(MOEK_A8_INT8),
	V(MOEK_A4_MXFP4_EVEN), V(MOEK_A4_MXFP4_ROUND_UP), V(MOEK_SILU), V(MOEK_GELU),
	V(MOEK_GELU_TANH), V(MOEK_RELU2), V(MOEK_SWIGLU_OAI), V(MOEK_SWIGLU_STEP),
	V(MOEK_SITU), V(MOEK_RULE_NONE), V(MOEK_RULE_DISABLED),
	V(MOEK_RULE_EXCLUDED), V(MOEK_RULE_UNLISTED), V(MOEK_RULE_SHADOWED),
	V(MOEK_RULE_NOT_INSTALLED), V(MOEK_RULE_NOT_REQUIRED), V(MOEK_RULE_OPTION),
	V(MOEK_RULE_NOT_REGULAR), V(MOEK_RULE_WRITABLE), V(MOEK_RULE_ABI_MAJOR),
	V(MOEK_RULE_ABI_TABLE), V(MOEK_RULE_ABI_SLOT), V(MOEK_RULE_ABI_NAME),
	V(MOEK_RULE_ISA), V(MOEK_RULE_MACHINE),
	V(MOEK_RULE_NOT_PLUGIN), V(MOEK_RULE_NOTE_DISAGREES), V(MOEK_RULE_DAMAGED),
	V(MOEK_RULE_NOTE), V(MOEK_RULE_ABI_MINOR), V(MOEK_RULE_PROBE_CRASH),
	V(MOEK_RULE_PROBE_TIME), V(MOEK_RULE_PROBE_HELPER), V(MOEK_RULE_PROBE_EXIT),
	V(MOEK_RULE_PROBE_NOISE), V(MOEK_RULE_SIDE_EFFECT), V(MOEK_RULE_GOLDEN), V(MOEK_RULE_LIBRARY),
	V(MOEK_RULE_TWO_HELPERS), V(MOEK_RULE_SYMBOL), V(MOEK_RULE_SYMBOL_FOREIGN),
	V(MOEK_RULE_LOAD), V(MOEK_RULE_OPEN), V(MOEK_RULE_DEVICE_KIND),
	V(MOEK_RULE_DEVICE_DRIVER), V(MOEK_RULE_DEVICE_PERMISSION),
	V(MOEK_RULE_DEVICE_VERSION), V(MOEK_RULE_DEVICE_ARCH), V(MOEK_RULE_WEIGHT),
	V(MOEK_RULE_GROUP_SIZE), V(MOEK_RULE_ZERO_POINTS), V(MOEK_RULE_ACTIVATION),
	V(MOEK_RULE_LIMIT), V(MOEK_RULE_INPUT_TYPE), V(MOEK_RULE_HIDDEN),
	V(MOEK_RULE_TOP_K), V(MOEK_RULE_EXPERT_MAP), V(MOEK_RULE_LORA),
	V(MOEK_RULE_COLUMN_GROUPS), V(MOEK_RULE_UNKNOWN_BIT),
	V(MOEK_RULE_UNKNOWN_VALUE), V(MOEK_RULE_ACTIVATIONS), V(MOEK_RULE_SCALE),
	V(MOEK_RULE_BIAS), V(MOEK_RULE_EXPERTS), V(MOEK_RULE_ALIGNMENT),
	V(MOEK_RULE_WEIGHT_ON_INPUT), V(MOEK_RULE_DETERMINISTIC),
	V(MOEK_RULE_INTERMEDIATE), V(MOEK_RULE_GATED), V(MOEK_RULE_ALPHA_BETA),
	V(MOEK_RULE_OUTPUT_TYPE), V(MOEK_RULE_ROW_STRIDE), V(MOEK_RULE_CAPTURE),
	V(MOEK_RULE_PARTIAL_SUM), V(MOEK_RULE_SHARDS), V(MOEK_RULE_TOKENS),
	V(MOEK_RULE_INDEX_RANGE), V(MOEK_RULE_DEPENDENCY), V(MOEK_RULE_INVALID), V(MOEK_RULE_EXCEPTION),
	V(MOEK_RULE_WORKSPACE), V(MOEK_RULE_MEMORY), V(MOEK_RULE_CREATE),
	V(MOEK_RULE_OUTRANKED), V(MOEK_ACCEPTS_NONE), V(MOEK_ACCEPTS_VALUES),
	V(MOEK_ACCEPTS_MULTIPLE), V(MOEK_ACCEPTS_AT_MOST), V(MOEK_ACCEPTS_AT_LEAST),
	V(MOEK_GATE_UP), V(MOEK_DOWN), V(MOEK_HOST), V(MOEK_HIP), V(MOEK_CUDA),
	V(MOEK_REDUCED), V(MOEK_SLOTS), V(MOEK_NATIVE), V(MOEK_GENERIC),
	V(MOEK_EMULATION), V(MOEK_TO_DEVICE), V(MOEK_TO_HOST), V(MOEK_ON_DEVICE),
	V(MOEK_TEXT), V(MOEK_JSON), V(MOEK_STATE_CHOSEN), V(MOEK_STATE_READY),
	V(MOEK_STATE_REFUSED), V(MOEK_STATE_UNUSABLE), V(MOEK_STATE_ABSENT),
	V(MOEK_STATE_MISSING), V(MOEK_STATE_DISABLED), V(MOEK_STATE_BROKEN),
	V(MOEK_STATE_FAILED), V(MOEK_STATE_UNOPENED), V(MOEK_STATE_NOT_PLUGIN),
	V(MOEK_LAYOUT_ROWS), V(MOEK_LAYOUT_PACKED),
	V(MOEK_LAYOUT_BLOCKS), V(MOEK_GATE_FIRST), V(MOEK_UP_FIRST),
	V(MOEK_GATE_INTERLEAVED), V(MOEK_SOFTMAX), V(MOEK_SIGMOID),
	V(MOEK_SQRT_SOFTPLUS), V(MOEK_ZERO_POINTS), V(MOEK_COLUMN_GROUPS),
	V(MOEK_BIAS), V(MOEK_LIMIT), V(MOEK_ALPHA_BETA), V(MOEK_NOT_GATED),
	V(MOEK_EXPERT_MAP), V(MOEK_WEIGHT_ON_INPUT), V(MOEK_ROW_STRIDE),
	V(MOEK_DETERMINISTIC), V(MOEK_CAPTURE), V(MOEK_LORA), V(MOEK_PARTIAL_SUM),
	V(MOEK_TRACE_GATE_UP), V(MOEK_TRACE_ACTIVATED), V(MOEK_TRACE_SLOTS),
	V(MOEK_TRACE_MAGNITUDES), V(MOEK_TRACE_QUANTISED_INPUT), V(MOEK_ABI_MAJOR),
	V(MOEK_ABI_MINOR), V(MOEK_NOTE_TYPE), V(MOEK_NOTE_MOST), V(MOEK_MAX_BUFFERS), V(MOEK_PROBLEM_SIZE_1_0),
	V(MOEK_VERDICT_SIZE_1_0), V(MOEK_MATRIX_SIZE_1_0), V(MOEK_DEVICE_SIZE_1_0),
	V(MOEK_WORKERS_SIZE_1_0), V(MOEK_HOST_SIZE_1_0), V(MOEK_SIZES_SIZE_1_0),
	V(MOEK_TRACE_SIZE_1_0), V(MOEK_BATCH_SIZE_1_0), V(MOEK_NUMERICS_SIZE_1_0),
	V(MOEK_EXPERTS_SIZE_1_0), V(MOEK_PLUGIN_SIZE_1_0),
	V(MOEK_REGISTRY_OPTIONS_SIZE_1_0), V(MOEK_CANDIDATE_SIZE_1_0),
	V(MOEK_SOURCE_SIZE_1_0), V(MOEK_STACK_SIZE_1_0),
	V(MOEK_LAYER_OPTIONS_SIZE_1_0), V(MOEK_PLACING_SIZE_1_0), V(MOEK_FORWARD_SIZE_1_0),
	V(MOEK_SHADOW_SIZE_1_0),
	V(MOEK_ROUTER_SIZE_1_0), V(MOEK_LAYER_INFO_SIZE_1_0),
	V(MOEK_TENSOR_SIZE_1_0), V(MOEK_CHECKPOINT_OPTIONS_SIZE_1_0),
	V(MOEK_USE_EXPERTS), V(MOEK_USE_ROUTER), V(MOEK_USE_SHARED), V(MOEK_USE_BEYOND),
	V(MOEK_USE_OTHER), V(MOEK_CONVERSION_SIZE_1_0),
};
/* clang-format on */

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static void write_golden(FILE *file)
{
	for (size_t i = 0; i < COUNT(fields); i++)
		fprintf(file, "%s.%s %zu %zu\n", fields[i].owner, fields[i].name,
		        fields[i].offset, fields[i].bytes);
	for (size_t i = 0; i < COUNT(values); i++)
		fprintf(file, "%s %lld\n", values[i].name, values[i].value);
}

START_TEST(no_line_of_the_golden_file_has_changed)
{
	char path[4096], golden[256], now[256];
	FILE *file, *mine = tmpfile();
	int line = 0;

	snprintf(path, sizeof(path), "%s/fixtures/abi-1.0.txt",
	         getenv("MOEK_TEST_SOURCE"));
	file = fopen(path, "r");
	ck_assert_msg(file != NULL && mine != NULL, "%s cannot be opened", path);
	write_golden(mine);
	rewind(mine);
	while (fgets(golden, sizeof(golden), file) != NULL) {
		line++;
		ck_assert_msg(fgets(now, sizeof(now), mine) != NULL &&
		                      strcmp(golden, now) == 0,
		              "abi-1.0.txt:%d: was %.*s, is %.*s", line,
		              (int)strcspn(golden, "\n"), golden,
		              (int)strcspn(now, "\n"), now);
	}
	ck_assert_msg(fgets(now, sizeof(now), mine) == NULL, "not in abi-1.0.txt: %s",
	              now);
	fclose(mine);
	fclose(file);
}
END_TEST

START_TEST(fields_follow_each_other_without_padding)
{
	size_t end = 0;

	for (size_t i = 0; i < COUNT(fields); i++) {
		if (i == 0 || strcmp(fields[i].owner, fields[i - 1].owner) != 0)
			end = 0;
		ck_assert_msg(fields[i].offset == end,
		              "moek_%s.%s is at %zu, what stands before it ends at %zu",
		              fields[i].owner, fields[i].name, fields[i].offset, end);
		end = fields[i].offset + fields[i].bytes;
	}
}
END_TEST

START_TEST(every_field_is_listed)
{
	/* a field added and not listed here would make its struct longer */
	for (size_t i = 0; i < COUNT(structs); i++)
		ck_assert_msg(structs[i].bytes == structs[i].offset,
		              "moek_%s ends at %zu, %s, the last field listed, at %zu",
		              structs[i].owner, structs[i].bytes, structs[i].name,
		              structs[i].offset);
}
END_TEST

START_TEST(struct_size_comes_first)
{
	/* parts of others and elements of arrays grow with their owners */
	static const char *const without[] = { "scheme", "rows", "expert", "buffer",
		                               "setting" };

	for (size_t i = 0; i < COUNT(structs); i++) {
		int exempt = 0;

		for (size_t j = 0; j < COUNT(without); j++)
			exempt |= strcmp(structs[i].owner, without[j]) == 0;
		for (size_t j = 0; j < COUNT(fields); j++)
			if (strcmp(fields[j].owner, structs[i].owner) == 0 &&
			    fields[j].offset == 0)
				ck_assert_msg((strcmp(fields[j].name, "struct_size") ==
				               0) == !exempt,
				              "moek_%s begins with %s",
				              structs[i].owner, fields[j].name);
	}
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite = suite_create("abi");
	TCase *tests = tcase_create("abi");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_test(tests, no_line_of_the_golden_file_has_changed);
	tcase_add_test(tests, fields_follow_each_other_without_padding);
	tcase_add_test(tests, every_field_is_listed);
	tcase_add_test(tests, struct_size_comes_first);
	if (argc > 1 && strcmp(argv[1], "--print") == 0) {
		write_golden(stdout);
		srunner_free(runner);
		return 0;
	}
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
