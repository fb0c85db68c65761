/* SPDX-License-Identifier: MIT */
/* Cards and causes, on made-up trees and the fake runtime. */
#define _POSIX_C_SOURCE 200809L /* setenv */

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugins/gpu/facts.h"
#include "tests/gpu/sysfs.h"

static char root[256], fake[512];
static struct gpu_driver driver;
static struct gpu_facts_paths paths;
static struct moek_device devices[4];

static void set_up(void)
{
	sysfs_create(root, sizeof(root));
	snprintf(fake, sizeof(fake), "%s/fakehip.so", getenv("MOEK_TEST_FAKES"));
	paths.sysfs = root;
	paths.kfd = "/dev/null";
	memset(&driver, 0, sizeof(driver));
	unsetenv("FAKEHIP_ARCH");
	unsetenv("FAKEHIP_VERSION");
}

static void tear_down(void)
{
	sysfs_destroy(root);
}

static void navi_31(void)
{
	sysfs_card(root, "0000:03:00.0", 0x1002, 0x744c, 0x030000);
	sysfs_node(root, 0, 0, 0); /* the CPU's node */
	sysfs_node(root, 1, 110000, 3);
}

static uint32_t list(void)
{
	return gpu_facts_list(&driver, &paths, devices, 4);
}

START_TEST(a_card_with_its_driver_is_usable)
{
	navi_31();
	gpu_driver_open(&driver, fake);
	ck_assert_int_eq(driver.state, GPU_READY);
	ck_assert_uint_eq(list(), 1);
	ck_assert_uint_eq(devices[0].kind, MOEK_HIP);
	ck_assert_uint_eq(devices[0].cause_rule, 0);
	ck_assert_uint_eq(devices[0].ordinal, 0);
	ck_assert_str_eq(devices[0].arch, "gfx1100");
	ck_assert_str_eq(devices[0].name, "fake gfx1100");
	ck_assert_uint_eq(devices[0].pci[1], 3);
	ck_assert_uint_eq(devices[0].memory_bytes, UINT64_C(25753026560));
	ck_assert_uint_eq(devices[0].compute_units, 96);
	ck_assert_uint_eq(devices[0].wave_size, 32);
}
END_TEST

START_TEST(a_machine_without_a_card_has_none)
{
	sysfs_card(root, "0000:01:00.0", 0x10de, 0x2335,
	           0x030200); /* of another maker */
	sysfs_card(root, "0000:00:01.0", 0x1002, 0x1479,
	           0x060400); /* a bridge of AMD */
	gpu_driver_open(&driver, "/nowhere/libamdhip64.so");
	ck_assert_uint_eq(list(), 0);
}
END_TEST

START_TEST(no_runtime_makes_a_card_unusable_not_absent)
{
	navi_31();
	gpu_driver_open(&driver, "/nowhere/libamdhip64.so");
	ck_assert_int_eq(driver.state, GPU_NO_RUNTIME);
	ck_assert_uint_eq(list(), 1);
	ck_assert_uint_eq(devices[0].cause_rule, MOEK_RULE_DEVICE_DRIVER);
	ck_assert_str_eq(devices[0].cause,
	                 "no HIP runtime: cannot open /nowhere/libamdhip64.so");
	ck_assert_str_eq(devices[0].arch, "gfx1100");
	ck_assert_str_eq(devices[0].name, "AMD 1002:744c");
	ck_assert_uint_eq(devices[0].ordinal, 0xffffffffu);
}
END_TEST

START_TEST(a_library_that_is_no_runtime_says_what_it_lacks)
{
	char other[512];

	navi_31();
	snprintf(other, sizeof(other), "%s/good_host.so", getenv("MOEK_TEST_FAKES"));
	gpu_driver_open(&driver, other);
	ck_assert_int_eq(driver.state, GPU_NO_RUNTIME);
	ck_assert_str_eq(driver.cause, "the HIP runtime lacks hipInit");
}
END_TEST

START_TEST(an_old_runtime_is_a_cause_of_its_own)
{
	navi_31();
	setenv("FAKEHIP_VERSION", "50221153", 1);
	gpu_driver_open(&driver, fake);
	ck_assert_int_eq(driver.state, GPU_OLD_RUNTIME);
	ck_assert_uint_eq(list(), 1);
	ck_assert_uint_eq(devices[0].cause_rule, MOEK_RULE_DEVICE_VERSION);
	ck_assert_str_eq(devices[0].cause, "HIP runtime 5.2 is too old, 5.7 is needed");
}
END_TEST

START_TEST(the_oldest_runtime_that_will_do_does)
{
	setenv("FAKEHIP_VERSION", "50700000", 1);
	gpu_driver_open(&driver, fake);
	ck_assert_int_eq(driver.state, GPU_READY);
}
END_TEST

START_TEST(a_runtime_that_sees_nothing_is_told)
{
	navi_31();
	setenv("FAKEHIP_ARCH", "none", 1);
	gpu_driver_open(&driver, fake);
	ck_assert_int_eq(driver.state, GPU_NO_DEVICE);
	ck_assert_uint_eq(list(), 1);
	ck_assert_uint_eq(devices[0].cause_rule, MOEK_RULE_DEVICE_DRIVER);
	ck_assert_str_eq(devices[0].cause,
	                 "the HIP runtime sees no device (error 101)");
}
END_TEST

START_TEST(a_card_without_kfd_node_lacks_the_kernel_driver)
{
	sysfs_card(root, "0000:03:00.0", 0x1002, 0x744c, 0x030000);
	gpu_driver_open(&driver, "/nowhere/libamdhip64.so");
	ck_assert_uint_eq(list(), 1);
	ck_assert_uint_eq(devices[0].cause_rule, MOEK_RULE_DEVICE_DRIVER);
	ck_assert_ptr_nonnull(strstr(devices[0].cause, "amdgpu kernel driver"));
	ck_assert_str_eq(devices[0].arch, "");
}
END_TEST

START_TEST(a_device_file_that_may_not_be_opened_is_permission)
{
	char file[300];

	navi_31();
	snprintf(file, sizeof(file), "%s/kfd", root);
	paths.kfd = file;
	gpu_driver_open(&driver, "/nowhere/libamdhip64.so");
	list();
	ck_assert_uint_eq(devices[0].cause_rule, MOEK_RULE_DEVICE_DRIVER);
	ck_assert_ptr_nonnull(strstr(devices[0].cause, "not there"));
	fclose(fopen(file, "w"));
	chmod(file, 0);
	if (geteuid() == 0) /* root may everything: be somebody else, in this child */
		ck_assert_int_eq(chmod(root, 0755) | seteuid(65534), 0);
	list();
	ck_assert_int_eq(seteuid(getuid()), 0);
	ck_assert_uint_eq(devices[0].cause_rule, MOEK_RULE_DEVICE_PERMISSION);
	ck_assert_ptr_nonnull(strstr(devices[0].cause, "permission denied: "));
}
END_TEST

START_TEST(cards_that_the_runtime_does_not_show_are_told_apart)
{
	navi_31();
	sysfs_card(root, "0000:44:00.0", 0x1002, 0x73bf, 0x030000);
	sysfs_node(root, 2, 100300, 0x44);
	gpu_driver_open(&driver, fake);
	ck_assert_uint_eq(list(), 2);
	ck_assert_uint_eq(devices[0].cause_rule, 0);
	ck_assert_str_eq(devices[1].arch, "gfx1030");
	ck_assert_uint_eq(devices[1].cause_rule, MOEK_RULE_DEVICE_DRIVER);
	ck_assert_str_eq(devices[1].cause, "the HIP runtime does not show this card");
	/* a short list is filled as far as it goes, and the count is the truth */
	ck_assert_uint_eq(gpu_facts_list(&driver, &paths, devices, 1), 2);
}
END_TEST

START_TEST(a_device_that_only_the_runtime_shows_is_listed)
{
	gpu_driver_open(&driver, fake);
	ck_assert_uint_eq(list(), 1);
	ck_assert_uint_eq(devices[0].ordinal, 0);
	ck_assert_uint_eq(devices[0].cause_rule, MOEK_RULE_DEVICE_DRIVER);
	ck_assert_ptr_nonnull(strstr(devices[0].cause, "architecture is unknown"));
}
END_TEST

START_TEST(architectures_are_read_as_the_kernel_writes_them)
{
	static const struct {
		unsigned int version;
		const char *arch;
	} archs[] = { { 110001, "gfx1101" }, { 110003, "gfx1103" },
		      { 90402, "gfx942" },   { 90010, "gfx90a" },
		      { 90500, "gfx950" },   { 120001, "gfx1201" } };
	size_t i;

	for (i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
		sysfs_card(root, "0000:03:00.0", 0x1002, 0x744c, 0x030000);
		sysfs_node(root, 1, archs[i].version, 3);
		list();
		ck_assert_str_eq(devices[0].arch, archs[i].arch);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gpu facts");
	TCase *t = tcase_create("gpu facts");
	SRunner *runner = srunner_create(s);
	int failed;

	tcase_add_checked_fixture(t, set_up, tear_down);
	tcase_add_test(t, a_card_with_its_driver_is_usable);
	tcase_add_test(t, a_machine_without_a_card_has_none);
	tcase_add_test(t, no_runtime_makes_a_card_unusable_not_absent);
	tcase_add_test(t, a_library_that_is_no_runtime_says_what_it_lacks);
	tcase_add_test(t, an_old_runtime_is_a_cause_of_its_own);
	tcase_add_test(t, the_oldest_runtime_that_will_do_does);
	tcase_add_test(t, a_runtime_that_sees_nothing_is_told);
	tcase_add_test(t, a_card_without_kfd_node_lacks_the_kernel_driver);
	tcase_add_test(t, a_device_file_that_may_not_be_opened_is_permission);
	tcase_add_test(t, cards_that_the_runtime_does_not_show_are_told_apart);
	tcase_add_test(t, a_device_that_only_the_runtime_shows_is_listed);
	tcase_add_test(t, architectures_are_read_as_the_kernel_writes_them);
	suite_add_tcase(s, t);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
