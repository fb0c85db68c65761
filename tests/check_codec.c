/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/codec.h"
#include "kit.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moek/formats.h>
#include <moek/moek.h>

/* ---- helpers ---- */

/** One expert of one layer, with the memory that it may lie in. */
struct taken {
	struct moek_source source;
	struct moek_expert expert;
	void *scratch;
};

static void begin_expert(struct moek_expert *expert)
{
	memset(expert, 0, sizeof(*expert));
	expert->gate.struct_size = MOEK_MATRIX_SIZE_1_0;
	expert->up.struct_size = MOEK_MATRIX_SIZE_1_0;
	expert->down.struct_size = MOEK_MATRIX_SIZE_1_0;
}

static int32_t take(struct moek_checkpoint *checkpoint, uint64_t layer, uint64_t expert,
                    struct taken *taken, struct moek_error *error_out)
{
	int32_t status;

	ck_assert_int_eq(
		moek_checkpoint_source(checkpoint, layer, &taken->source, error_out),
		MOEK_OK);
	/* an odd address: nothing may rely on how the scratch lies */
	taken->scratch = malloc(taken->source.scratch_bytes + 1);
	begin_expert(&taken->expert);
	status = taken->source.expert(taken->source.self, expert,
	                              (char *)taken->scratch + 1, &taken->expert,
	                              error_out);
	return status;
}

static void drop(struct taken *taken)
{
	moek_source_close(&taken->source);
	free(taken->scratch);
}

static struct moek_checkpoint *open_ok(const char *path)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };
	int32_t status = moek_checkpoint_open(NULL, path, &checkpoint, &error);

	ck_assert_msg(status == MOEK_OK, "%s", error.text);
	return checkpoint;
}

/** Weight at row, column of a canonical matrix. */
static float weight_at(const struct moek_matrix *m, uint64_t row, uint64_t column)
{
	uint64_t groups = (m->columns + m->group_size - 1) / m->group_size;
	uint64_t group = m->column_group != NULL ? m->column_group[column]
	                                         : column / m->group_size;
	const uint8_t *nibbles = (const uint8_t *)m->codes +
	                         row * ((m->columns + 1) / 2);
	uint64_t at = row * groups + group;

	if (m->weight == MOEK_MXFP4)
		return moek_mxfp4_value(moek_nibble(nibbles, column),
		                        ((const uint8_t *)m->scales)[at]);
	if (m->weight == MOEK_INT4)
		return moek_int4_value(moek_nibble(nibbles, column),
		                       m->zeros != NULL ? m->zeros[at] : 8,
		                       moek_scalar(m->scales, m->scale, at));
	return moek_scalar(m->codes, m->weight, row * m->columns + column);
}

/* ---- real checkpoints ---- */

static const char *const models[] = { "tiny-qwen3moe-ct-sym-g32", "tiny-gptoss-mxfp4" };

static void compare_matrix(const struct moek_safetensors *expected, unsigned expert,
                           const char *part, const struct moek_matrix *m)
{
	struct moek_tensor tensor;
	struct moek_error error;
	char name[64];

	snprintf(name, sizeof(name), "layers.1.experts.%u.%s", expert, part);
	ck_assert_int_eq(moek_safetensors_tensor(expected, name, &tensor, &error),
	                 MOEK_OK);
	ck_assert_uint_eq(tensor.rank, 2);
	ck_assert_uint_eq(tensor.shape[0], m->rows);
	ck_assert_uint_eq(tensor.shape[1], m->columns);
	for (uint64_t r = 0; r < m->rows; r++)
		for (uint64_t c = 0; c < m->columns; c++) {
			float want = moek_scalar(tensor.data, MOEK_F32,
			                         r * m->columns + c);
			float got = weight_at(m, r, c);

			ck_assert_msg(moek_f32_bits(got) == moek_f32_bits(want),
			              "%s [%llu][%llu]: %a, expected %a", name,
			              (unsigned long long)r, (unsigned long long)c,
			              (double)got, (double)want);
		}
}

START_TEST(dequantises_as_the_writing_tool_does)
{
	const char *path = kit_path(
		kit_path(getenv("MOEK_TEST_SOURCE"), "fixtures/checkpoints"),
		models[_i]);
	struct moek_checkpoint *checkpoint = open_ok(path);
	struct moek_safetensors *expected = NULL;
	struct moek_error error;
	static const unsigned experts[] = { 3, 5 };

	ck_assert_int_eq(
		moek_safetensors_open(kit_path(path, "expected/dequant.safetensors"),
	                              &expected, &error),
		MOEK_OK);
	for (size_t i = 0; i < 2; i++) {
		struct taken taken;

		ck_assert_int_eq(take(checkpoint, 1, experts[i], &taken, &error),
		                 MOEK_OK);
		compare_matrix(expected, experts[i], "gate", &taken.expert.gate);
		compare_matrix(expected, experts[i], "up", &taken.expert.up);
		compare_matrix(expected, experts[i], "down", &taken.expert.down);
		drop(&taken);
	}
	moek_safetensors_close(expected);
	moek_checkpoint_close(checkpoint);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("codec");
	TCase *tests = tcase_create("codec");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_loop_test(tests, dequantises_as_the_writing_tool_does, 0, 2);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
