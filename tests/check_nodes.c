/* SPDX-License-Identifier: MIT */
/* tools/nodes.c on made-up topologies; the processors are this machine's. */
#include "config.h"

#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kit.h"
#include "tools/nodes.h"

static void node(const char *root, unsigned number, const char *cpus)
{
	char name[32];

	snprintf(name, sizeof(name), "node%u", number);
	ck_assert_int_eq(mkdir(kit_path(root, name), 0777), 0);
	snprintf(name, sizeof(name), "node%u/cpulist", number);
	kit_write(kit_path(root, name), cpus, strlen(cpus));
}

/* The first processor that this process may use. */
static unsigned first_cpu(void)
{
	cpu_set_t set;
	unsigned i;

	ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
	for (i = 0; !CPU_ISSET(i, &set); i++)
		;
	return i;
}

static void allow_only(unsigned cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(set), &set), 0);
}

START_TEST(each_node_with_a_processor_of_ours_counts)
{
	const char *root = kit_folder();
	char cpus[64];

	snprintf(cpus, sizeof(cpus), "%u\n", first_cpu());
	node(root, 0, cpus);
	ck_assert_uint_eq(nodes_count(root), 1);
	snprintf(cpus, sizeof(cpus), "1022,0-%u\n", first_cpu());
	node(root, 2, cpus); /* a gap */
	ck_assert_uint_eq(nodes_count(root), 2);
	node(root, 3, "1020-1023\n"); /* not of this machine */
	node(root, 4, "\n");          /* memory alone */
	ck_assert_uint_eq(nodes_count(root), 2);
	kit_clean();
}
END_TEST

START_TEST(a_node_of_processors_that_are_not_allowed_does_not)
{
	const char *root = kit_folder();
	unsigned cpu = first_cpu();
	char cpus[64];

	snprintf(cpus, sizeof(cpus), "%u\n", cpu);
	node(root, 0, cpus);
	snprintf(cpus, sizeof(cpus), "%u-1023\n", cpu + 1);
	node(root, 1, cpus);
	allow_only(cpu);
	ck_assert_uint_eq(nodes_count(root), 1);
	kit_clean();
}
END_TEST

START_TEST(a_machine_that_tells_nothing_is_one_node)
{
	const char *root = kit_folder();

	ck_assert_uint_eq(nodes_count(root), 1);
	node(root, 0, "none\n");
	node(root, 1, "3-\n");
	ck_assert_uint_eq(nodes_count(root), 1);
	ck_assert_uint_eq(nodes_count("/nowhere"), 1);
	kit_clean();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("nodes");
	TCase *nodes = tcase_create("nodes");
	SRunner *runner;
	int failed;

	tcase_add_test(nodes, each_node_with_a_processor_of_ours_counts);
	tcase_add_test(nodes, a_node_of_processors_that_are_not_allowed_does_not);
	tcase_add_test(nodes, a_machine_that_tells_nothing_is_one_node);
	suite_add_tcase(suite, nodes);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
