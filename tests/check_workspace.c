/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/workspace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define F32(name_, elements_, first, last)                                             \
	{                                                                              \
		.name = name_, .elements = elements_, .align = 64, .type = MOEK_F32,   \
		.first_stage = first, .last_stage = last                               \
	}

static struct moek_plan plan;
static struct moek_error error;

static int32_t make(const struct moek_buffer *buffers, uint32_t count, uint32_t workers,
                    int checked)
{
	struct moek_plan_request request = { buffers, count,   workers,
		                             checked, checked, "fake.any" };

	memset(&plan, 0, sizeof(plan));
	return moek_plan_make(&request, &plan, &error);
}

static int disjoint(uint32_t a, uint32_t b)
{
	const struct moek_placed *one = &plan.placed[a], *other = &plan.placed[b];

	return one->offset + one->bytes <= other->offset ||
	       other->offset + other->bytes <= one->offset;
}

START_TEST(buffers_alive_together_stand_apart)
{
	const struct moek_buffer buffers[] = { F32("a", 100, 0, 1), F32("b", 300, 1, 2),
		                               F32("c", 200, 2, 3) };

	ck_assert_int_eq(make(buffers, 3, 1, 0), MOEK_OK);
	ck_assert(disjoint(0, 1));
	ck_assert(disjoint(1, 2));
	/* a ends before c begins: they share */
	ck_assert(!disjoint(0, 2));
	ck_assert_uint_eq(plan.bytes, 300 * 4 + 16 + 200 * 4);
	ck_assert_uint_eq(plan.placed[2].bytes, 800);
}
END_TEST

/* they are set before the first stage, whatever comes before their own */
START_TEST(zeros_share_with_nobody_who_writes_before_them)
{
	struct moek_buffer buffers[] = { F32("a", 100, 0, 1), F32("b", 100, 2, 3),
		                         F32("c", 100, 4, 5) };

	ck_assert_int_eq(make(buffers, 3, 1, 0), MOEK_OK);
	ck_assert(!disjoint(0, 1));
	buffers[1].zeroed = 1;
	ck_assert_int_eq(make(buffers, 3, 1, 0), MOEK_OK);
	ck_assert(disjoint(0, 1));
	ck_assert(!disjoint(0, 2));
}
END_TEST

START_TEST(poison_leaves_the_zeros_of_shared_memory)
{
	const struct moek_buffer buffers[] = { { "z", 16, 64, MOEK_F32, 0, 1, 1, 0, 0 },
		                               F32("p", 64, 2, 3) };
	const struct moek_plan_request request = { buffers, 2, 1, 0, 1, "fake.any" };
	struct moek_workspace_request asked = { .filled = 1, .zeros = 1 };
	struct moek_workspace *workspace;
	void *addresses[2];

	ck_assert_int_eq(moek_plan_make(&request, &plan, &error), MOEK_OK);
	ck_assert_ptr_eq((void *)plan.placed[0].offset, (void *)plan.placed[1].offset);
	asked.bytes = plan.bytes;
	asked.align = plan.align;
	ck_assert_int_eq(moek_workspace_open(&asked, &workspace, &error), MOEK_OK);
	for (int again = 0; again < 2; again++) {
		ck_assert_int_eq(
			moek_plan_begin(&plan, workspace, NULL, addresses, NULL),
			MOEK_OK);
		for (int i = 0; i < 64; i++)
			ck_assert_int_eq(((int32_t *)addresses[1])[i], i < 16 ? 0 : -1);
		/* no guards, so nothing is said of what lies behind */
		ck_assert_int_eq(
			moek_plan_end(&plan, workspace, NULL, "fake.any", &error),
			MOEK_OK);
	}
	moek_workspace_destroy(workspace);
}
END_TEST

START_TEST(every_plan_keeps_the_living_apart)
{
	/* all ranges over four stages, in sizes that fit badly */
	struct moek_buffer buffers[10];
	uint64_t sum = 0;
	uint32_t count = 0;

	for (uint32_t first = 0; first < 4; first++)
		for (uint32_t last = first; last < 4; last++) {
			buffers[count] = (struct moek_buffer)F32(
				"x", 37 * (count * 7 % 10 + 1), first, last);
			buffers[count].align = UINT64_C(2) << (count % 11);
			sum += buffers[count].elements * 4 + 1024;
			count++;
		}
	ck_assert_int_eq(make(buffers, count, 1, 0), MOEK_OK);
	for (uint32_t i = 0; i < count; i++) {
		ck_assert_uint_eq(plan.placed[i].offset % buffers[i].align, 0);
		ck_assert_uint_le(plan.placed[i].offset + plan.placed[i].bytes,
		                  plan.bytes);
		for (uint32_t j = 0; j < i; j++)
			if (buffers[i].first_stage <= buffers[j].last_stage &&
			    buffers[j].first_stage <= buffers[i].last_stage)
				ck_assert(disjoint(i, j));
	}
	ck_assert_uint_lt(plan.bytes, sum);
	ck_assert_uint_eq(plan.align, 1024);
}
END_TEST

START_TEST(with_checks_nothing_shares)
{
	const struct moek_buffer buffers[] = { F32("a", 100, 0, 0),
		                               F32("b", 300, 1, 1) };

	ck_assert_int_eq(make(buffers, 2, 1, 0), MOEK_OK);
	ck_assert(!disjoint(0, 1));
	ck_assert_int_eq(make(buffers, 2, 1, 1), MOEK_OK);
	ck_assert(disjoint(0, 1));
	ck_assert_uint_ge(plan.placed[0].offset, 256);
	ck_assert_uint_ge(plan.placed[1].offset, plan.placed[0].offset + 400 + 512);
	ck_assert_uint_ge(plan.bytes, plan.placed[1].offset + 1200 + 256);
}
END_TEST

START_TEST(each_worker_gets_a_copy)
{
	struct moek_buffer buffer = { "x", 5, 64, MOEK_BF16, 0, 0, 0, 1, 0 };

	ck_assert_int_eq(make(&buffer, 1, 3, 0), MOEK_OK);
	ck_assert_uint_eq(plan.placed[0].bytes, 3 * 64);
	buffer.elements = 33;
	buffer.align = 4;
	ck_assert_int_eq(make(&buffer, 1, 3, 0), MOEK_OK);
	ck_assert_uint_eq(plan.placed[0].bytes, 3 * 68);
}
END_TEST

START_TEST(a_buffer_may_be_empty)
{
	const struct moek_buffer buffers[] = { F32("a", 0, 0, 3), F32("b", 16, 0, 3) };

	for (int checked = 0; checked < 2; checked++) {
		ck_assert_int_eq(make(buffers, 2, 1, checked), MOEK_OK);
		ck_assert_uint_eq(plan.placed[0].bytes, 0);
	}
	ck_assert_int_eq(make(buffers, 0, 1, 0), MOEK_OK);
	ck_assert_uint_eq(plan.bytes, 0);
}
END_TEST

START_TEST(sizes_beyond_32_bits_are_planned)
{
	const struct moek_buffer buffers[] = { F32("a", 3000000001, 0, 1),
		                               F32("b", 5000000000, 1, 2) };

	ck_assert_int_eq(make(buffers, 2, 1, 0), MOEK_OK);
	ck_assert(disjoint(0, 1));
	ck_assert_uint_eq(plan.bytes, UINT64_C(32000000004));
}
END_TEST

START_TEST(sizes_beyond_64_bits_are_refused)
{
	struct moek_buffer buffers[] = { F32("a", UINT64_MAX / 4, 0, 1),
		                         F32("b", UINT64_MAX / 4, 0, 1) };

	for (int checked = 0; checked < 2; checked++) {
		ck_assert_int_eq(make(buffers, 2, 1, checked), MOEK_NO_MEMORY);
		ck_assert_str_eq(error.text,
		                 "fake.any: its workspace does not fit 64 bits");
		ck_assert_uint_eq(error.rule, MOEK_RULE_WORKSPACE);
		ck_assert_int_eq(make(buffers, 1, 1, checked), MOEK_NO_MEMORY);
	}
	buffers[0].elements = UINT64_MAX / 4 + 1;
	ck_assert_int_eq(make(buffers, 1, 1, 0), MOEK_NO_MEMORY);
	buffers[0].elements = UINT64_MAX / 32;
	buffers[0].per_worker = 1;
	ck_assert_int_eq(make(buffers, 1, 3, 0), MOEK_OK);
	ck_assert_int_eq(make(buffers, 1, 8, 0), MOEK_NO_MEMORY);
}
END_TEST

static const struct {
	struct moek_buffer buffer;
	const char *says;
} malformed[] = {
	{ { .align = 4, .type = MOEK_F32 }, "buffer \"(no name)\": has no name" },
	{ { .name = "", .align = 4, .type = MOEK_F32 }, "has no name" },
	{ { .name = "x", .align = 3, .type = MOEK_F32 },
	  "\"x\": align must be a power of two up to 2097152, found 3" },
	{ { .name = "x", .align = 0, .type = MOEK_F32 },
	  "align must be a power of two" },
	{ { .name = "x", .align = 1 << 22, .type = MOEK_F32 },
	  "align must be a power of two" },
	{ { .name = "x", .align = 4, .type = MOEK_INT4 },
	  "type must have whole bytes, found 8" },
	{ { .name = "x", .align = 4, .type = 0 },
	  "type must have whole bytes, found 0" },
	{ { .name = "x",
	    .align = 4,
	    .type = MOEK_F32,
	    .first_stage = 2,
	    .last_stage = 1 },
	  "first_stage is after last_stage, found 2" },
	{ { .name = "x", .align = 4, .type = MOEK_F32, .zeroed = 2 },
	  "zeroed and per_worker" },
	{ { .name = "x", .align = 4, .type = MOEK_F32, .per_worker = 2 },
	  "zeroed and per_worker" },
	{ { .name = "x", .align = 4, .type = MOEK_F32, .reserved = 1 }, "reserved 0" },
};

START_TEST(a_malformed_buffer_is_the_plugins_fault)
{
	ck_assert_int_eq(make(&malformed[_i].buffer, 1, 1, 0), MOEK_PLUGIN);
	ck_assert_msg(strstr(error.text, malformed[_i].says) != NULL &&
	                      strstr(error.text, "fake.any") == error.text,
	              "\"%s\"", error.text);
}
END_TEST

/* ---- a workspace in use ---- */

/* A device whose memory is the host's: what it copies, it copies at once. */
static uint32_t copies, waits, allocs, frees;

static int32_t fake_alloc(void *plugin, const struct moek_device *device,
                          uint64_t bytes, void **address_out)
{
	(void)plugin;
	(void)device;
	allocs++;
	*address_out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	return *address_out != NULL ? MOEK_OK : MOEK_NO_MEMORY;
}

static void fake_free(void *plugin, const struct moek_device *device, void *address)
{
	(void)plugin;
	(void)device;
	frees++;
	free(address);
}

static int32_t fake_copy(void *plugin, const struct moek_device *device, void *to,
                         const void *from, uint64_t bytes, uint32_t direction,
                         void *stream)
{
	(void)plugin;
	(void)device;
	(void)direction;
	(void)stream;
	copies++;
	memcpy(to, from, bytes);
	return MOEK_OK;
}

static int32_t fake_wait(void *plugin, const struct moek_device *device, void *stream)
{
	(void)plugin;
	(void)device;
	(void)stream;
	waits++;
	return MOEK_OK;
}

static const struct moek_plugin fake_plugin = { .name = "fake",
	                                        .alloc = fake_alloc,
	                                        .free = fake_free,
	                                        .copy = fake_copy,
	                                        .wait = fake_wait };
static const struct moek_device fake_device = { .kind = MOEK_HIP };

static const struct moek_buffer used[] = {
	F32("gate_up", 100, 0, 1),
	{ .name = "counts", .elements = 7, .align = 4, .type = MOEK_I32, .zeroed = 1 },
	{ .name = "tile",
	  .elements = 3,
	  .align = 64,
	  .type = MOEK_BF16,
	  .per_worker = 1 },
};

static struct moek_workspace *open_workspace(int on_device, int checked)
{
	struct moek_workspace_request request = { .filled = checked, .zeros = 1 };
	struct moek_workspace *workspace = NULL;

	ck_assert_int_eq(make(used, 3, 2, checked), MOEK_OK);
	request.bytes = plan.bytes;
	request.align = plan.align;
	if (on_device)
		request.space = (struct moek_space){ &fake_plugin, NULL, &fake_device };
	ck_assert_int_eq(moek_workspace_open(&request, &workspace, &error), MOEK_OK);
	return workspace;
}

START_TEST(buffers_arrive_zeroed_or_poisoned)
{
	struct moek_workspace *workspace = open_workspace(_i, 1);
	void *addresses[3];

	for (int run = 0; run < 2; run++) {
		ck_assert_int_eq(
			moek_plan_begin(&plan, workspace, NULL, addresses, NULL),
			MOEK_OK);
		for (int i = 0; i < 100; i++)
			ck_assert(isnan(((float *)addresses[0])[i]));
		for (int i = 0; i < 7; i++)
			ck_assert_int_eq(((int32_t *)addresses[1])[i], 0);
		for (int i = 0; i < 64; i++)
			ck_assert_uint_eq(((uint16_t *)addresses[2])[i], 0xffff);
		memset(addresses[0], 1, 400);
		memset(addresses[1], 1, 28);
		memset(addresses[2], 1, 128);
		ck_assert_int_eq(
			moek_plan_end(&plan, workspace, NULL, "fake.any", &error),
			MOEK_OK);
	}
	moek_workspace_destroy(workspace);
}
END_TEST

START_TEST(without_checks_only_zeros_are_set)
{
	struct moek_workspace *workspace = open_workspace(_i, 0);
	void *addresses[3];

	ck_assert_int_eq(moek_plan_begin(&plan, workspace, NULL, addresses, NULL),
	                 MOEK_OK);
	memset(addresses[1], 1, 28);
	memset(addresses[0], 2, 400);
	copies = 0;
	ck_assert_int_eq(moek_plan_begin(&plan, workspace, NULL, addresses, NULL),
	                 MOEK_OK);
	ck_assert_int_eq(((int32_t *)addresses[1])[6], 0);
	ck_assert_int_eq(((int32_t *)addresses[0])[99], 0x02020202);
	ck_assert_uint_eq(copies, _i == 1 ? 1 : 0);
	ck_assert_int_eq(moek_plan_end(&plan, workspace, NULL, "fake.any", &error),
	                 MOEK_OK);
	moek_workspace_destroy(workspace);
}
END_TEST

static const struct {
	uint32_t buffer;
	int64_t at;
	const char *says;
} broken[] = {
	{ 0, 400,
	  "outside its workspace buffer \"gate_up\" of 400 bytes: 0 bytes after its "
	  "end" },
	{ 0, 400 + 255, "\"gate_up\" of 400 bytes: 255 bytes after its end" },
	{ 1, 28, "\"counts\" of 28 bytes: 0 bytes after its end" },
	{ 1, -1, "\"counts\" of 28 bytes: 1 bytes before its start" },
	{ 2, 128, "\"tile\" of 128 bytes: 0 bytes after its end" },
	{ 2, -256, "\"tile\" of 128 bytes: 256 bytes before its start" },
};

START_TEST(a_broken_guard_names_its_buffer)
{
	static const unsigned char values[] = { 0, 0xff, 1 };

	for (int on_device = 0; on_device < 2; on_device++)
		for (int v = 0; v < 3; v++) {
			struct moek_workspace *workspace = open_workspace(on_device, 1);
			void *addresses[3];

			moek_plan_begin(&plan, workspace, NULL, addresses, NULL);
			/* the guard's high byte is 0x7f, its low byte 0xff: flip what
			 * is there */
			((unsigned char *)
			         addresses[broken[_i].buffer])[broken[_i].at] ^=
				(unsigned char)(values[v] | 2);
			ck_assert_int_eq(moek_plan_end(&plan, workspace, NULL,
			                               "fake.any", &error),
			                 MOEK_PLUGIN);
			ck_assert_uint_eq(error.rule, MOEK_RULE_WORKSPACE);
			ck_assert_msg(strstr(error.text, broken[_i].says) != NULL,
			              "\"%s\"", error.text);
			ck_assert_msg(strstr(error.text, "fake.any: ") == error.text,
			              "\"%s\"", error.text);
			moek_workspace_destroy(workspace);
		}
}
END_TEST

START_TEST(an_overrun_with_poison_is_seen_too)
{
	struct moek_workspace *workspace = open_workspace(0, 1);
	void *addresses[3];

	moek_plan_begin(&plan, workspace, NULL, addresses, NULL);
	memset(addresses[0], 0xff, 404);
	ck_assert_int_eq(moek_plan_end(&plan, workspace, NULL, "fake.any", &error),
	                 MOEK_PLUGIN);
	moek_workspace_destroy(workspace);
}
END_TEST

START_TEST(reading_past_the_end_gives_nan)
{
	struct moek_workspace *workspace = open_workspace(0, 1);
	void *addresses[3];

	moek_plan_begin(&plan, workspace, NULL, addresses, NULL);
	ck_assert(isnan(((float *)addresses[0])[100]));
	ck_assert(isnan(((float *)addresses[0])[-1]));
	moek_workspace_destroy(workspace);
}
END_TEST

START_TEST(the_hosts_own_memory_is_used)
{
	struct moek_workspace_request request = { 0 };
	struct moek_workspace *workspace = NULL;
	char *memory;
	void *addresses[3];

	ck_assert_int_eq(make(used, 3, 2, 0), MOEK_OK);
	request.bytes = plan.bytes;
	request.align = plan.align;
	memory = aligned_alloc(256, (plan.bytes + 511) / 256 * 256);
	request.memory = memory;
	request.memory_bytes = plan.bytes;
	ck_assert_int_eq(moek_workspace_open(&request, &workspace, &error), MOEK_OK);
	moek_plan_begin(&plan, workspace, NULL, addresses, NULL);
	ck_assert_ptr_eq(addresses[0], memory + plan.placed[0].offset);
	moek_workspace_destroy(workspace);

	workspace = NULL;
	request.memory_bytes = plan.bytes - 1;
	ck_assert_int_eq(moek_workspace_open(&request, &workspace, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_uint_eq(error.rule, MOEK_RULE_WORKSPACE);
	ck_assert_ptr_nonnull(strstr(error.text, "bytes, the layers need"));
	request.memory = memory + 64;
	request.memory_bytes = plan.bytes;
	ck_assert_int_eq(moek_workspace_open(&request, &workspace, &error),
	                 MOEK_BAD_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(error.text, "not aligned to 256"));
	ck_assert_ptr_null(workspace);
	free(memory);
}
END_TEST

START_TEST(memory_of_a_device_is_its_plugins)
{
	struct moek_workspace *workspace;

	allocs = frees = 0;
	workspace = open_workspace(1, 1);
	ck_assert_uint_eq(allocs, 2);
	moek_workspace_destroy(workspace);
	ck_assert_uint_eq(frees, 2);
	moek_workspace_destroy(NULL);
}
END_TEST

START_TEST(too_large_a_workspace_is_out_of_memory)
{
	struct moek_workspace_request request = { .bytes = UINT64_C(1) << 62,
		                                  .align = 256 };
	struct moek_workspace *workspace = NULL;

	ck_assert_int_eq(moek_workspace_open(&request, &workspace, &error),
	                 MOEK_NO_MEMORY);
	ck_assert_ptr_null(workspace);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

int main(void)
{
	Suite *suite = suite_create("workspace");
	TCase *tests = tcase_create("workspace");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_test(tests, buffers_alive_together_stand_apart);
	tcase_add_test(tests, zeros_share_with_nobody_who_writes_before_them);
	tcase_add_test(tests, poison_leaves_the_zeros_of_shared_memory);
	tcase_add_test(tests, every_plan_keeps_the_living_apart);
	tcase_add_test(tests, with_checks_nothing_shares);
	tcase_add_test(tests, each_worker_gets_a_copy);
	tcase_add_test(tests, a_buffer_may_be_empty);
	tcase_add_test(tests, sizes_beyond_32_bits_are_planned);
	tcase_add_test(tests, sizes_beyond_64_bits_are_refused);
	tcase_add_loop_test(tests, a_malformed_buffer_is_the_plugins_fault, 0,
	                    COUNT(malformed));
	tcase_add_loop_test(tests, buffers_arrive_zeroed_or_poisoned, 0, 2);
	tcase_add_loop_test(tests, without_checks_only_zeros_are_set, 0, 2);
	tcase_add_loop_test(tests, a_broken_guard_names_its_buffer, 0, COUNT(broken));
	tcase_add_test(tests, an_overrun_with_poison_is_seen_too);
	tcase_add_test(tests, reading_past_the_end_gives_nan);
	tcase_add_test(tests, the_hosts_own_memory_is_used);
	tcase_add_test(tests, memory_of_a_device_is_its_plugins);
	tcase_add_test(tests, too_large_a_workspace_is_out_of_memory);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
