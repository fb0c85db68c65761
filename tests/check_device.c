/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/device.h"
#include "core/json.h"
#include "stage.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

static struct stage stage;
static struct moek_machine machine;

static void begin(void)
{
	stage_begin(&stage);
	memset(&machine, 0, sizeof(machine));
}

static void end(void)
{
	moek_machine_close(&machine);
	stage_end(&stage);
}

static int32_t read_facts(const char *text)
{
	char path[1024];

	stage_file(&stage, "facts.json", text);
	snprintf(path, sizeof(path), "%s/facts.json", stage.folder);
	moek_machine_close(&machine);
	return moek_machine_open(path, &machine, &stage.error);
}

START_TEST(this_machine_is_a_host)
{
	struct utsname names;

	ck_assert_msg(moek_machine_open(NULL, &machine, &stage.error) == MOEK_OK, "%s",
	              stage.error.text);
	uname(&names);
	ck_assert_str_eq(machine.host.arch, names.machine);
	ck_assert_uint_eq(machine.host.kind, MOEK_HOST);
	ck_assert_uint_gt(machine.host.memory_bytes, 0);
	ck_assert_uint_gt(machine.host.compute_units, 0);
	ck_assert_uint_gt(strlen(machine.host.features), 0);
	ck_assert_uint_eq(machine.device_count, 0);
}
END_TEST

START_TEST(cpu_features_are_the_kernels_words)
{
	static const char x86[] = "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\n"
				  "flags\t\t: fpu sse2 avx2\nvmx flags\t: ept\n\n"
				  "processor\t: 1\nflags\t\t: other\n";
	static const char arm[] = "processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 1";
	struct moek_device device = { 0 };
	char *features;

	ck_assert_int_eq(moek_cpuinfo_parse(x86, &device, &features), 1);
	ck_assert_str_eq(device.name, "Some CPU @ 2GHz");
	ck_assert_str_eq(device.features, "fpu sse2 avx2");
	free(features);
	ck_assert_int_eq(moek_cpuinfo_parse(arm, &device, &features), 1);
	ck_assert_str_eq(features, "fp asimd");
	ck_assert_str_eq(device.name, "");
	free(features);
	ck_assert_int_eq(moek_cpuinfo_parse("", &device, &features), 1);
	ck_assert_str_eq(features, "");
	free(features);
	ck_assert_int_eq(moek_cpuinfo_parse("flags\t:", &device, &features), 1);
	ck_assert_str_eq(features, "");
	free(features);
}
END_TEST

static const char whole[] =
	"{\"host\": {\"arch\": \"x86_64\", \"features\": \"avx2 fma\"},\n"
	" \"devices\": [{\"kind\": \"hip\", \"arch\": \"gfx1100\", \"name\": \"A "
        "card\",\n"
	"  \"ordinal\": 1, \"pci\": \"0000:03:00.1\", \"memory_bytes\": 25753026560,\n"
	"  \"uuid\": \"000102030405060708090a0b0c0d0e0f\", \"compute_units\": 96,\n"
	"  \"wave_size\": 32, \"cause_rule\": \"device_permission\",\n"
	"  \"cause\": \"permission denied: /dev/kfd\"},\n"
	"  {\"kind\": \"cuda\", \"arch\": \"sm_90\"}]}";

static void is_whole(void)
{
	const struct moek_device *device = machine.devices;

	ck_assert_str_eq(machine.host.arch, "x86_64");
	ck_assert_str_eq(machine.host.features, "avx2 fma");
	ck_assert_uint_eq(machine.device_count, 2);
	ck_assert_uint_eq(device->kind, MOEK_HIP);
	ck_assert_str_eq(device->arch, "gfx1100");
	ck_assert_str_eq(device->name, "A card");
	ck_assert_uint_eq(device->ordinal, 1);
	ck_assert_uint_eq(device->pci[1], 3);
	ck_assert_uint_eq(device->pci[3], 1);
	ck_assert_uint_eq(device->uuid[15], 15);
	ck_assert_uint_eq(device->memory_bytes, 25753026560u);
	ck_assert_uint_eq(device->compute_units, 96);
	ck_assert_uint_eq(device->wave_size, 32);
	ck_assert_uint_eq(device->cause_rule, MOEK_RULE_DEVICE_PERMISSION);
	ck_assert_str_eq(device->cause, "permission denied: /dev/kfd");
	ck_assert_uint_eq(device[1].kind, MOEK_CUDA);
	ck_assert_ptr_nonnull(machine.facts_file);
}

START_TEST(a_facts_file_stands_for_another_machine)
{
	ck_assert_msg(read_facts(whole) == MOEK_OK, "%s", stage.error.text);
	is_whole();
}
END_TEST

START_TEST(what_is_written_reads_back)
{
	struct moek_json *root, *array;
	char *text;

	ck_assert_int_eq(read_facts(whole), MOEK_OK);
	root = moek_json_new_object();
	array = moek_json_new_array();
	moek_json_set(root, "host", moek_device_json(&machine.host));
	for (size_t i = 0; i < machine.device_count; i++)
		moek_json_append(array, moek_device_json(&machine.devices[i]));
	moek_json_set(root, "devices", array);
	text = moek_json_text(root);
	ck_assert_msg(read_facts(text) == MOEK_OK, "%s", stage.error.text);
	is_whole();
	free(text);
	moek_json_free(root);
}
END_TEST

static const struct {
	const char *text, *message;
} bad[] = {
	{ "[]", "host: missing" },
	{ "{\"host\": 1}", "host: missing, or not an object" },
	{ "{\"host\": {}}", "host: arch is missing" },
	{ "{\"host\": {\"arch\": 1}}", "host: arch is not a string" },
	{ "{\"host\": {\"arch\": \"a\"}}", "devices: expected an array" },
	{ "{\"host\": {\"arch\": \"a\", \"arhc\": \"b\"}}",
	  "host: unknown member arhc" },
	{ "{\"host\": {\"arch\": \"a\", \"features\": 1}}", "host: features is not" },
	{ "{\"host\": {\"arch\": \"0123456789012345678901234567890123\"}}",
	  "host: arch has 34 bytes, at most 31 fit" },
	{ "{\"host\": {\"arch\": \"a\\u0000b\"}}", "host: arch" },
	{ "{\"host\": {\"arch\": \"a\", \"memory_bytes\": -1}}",
	  "host: memory_bytes is not" },
	{ "{\"host\": {\"arch\": \"a\", \"wave_size\": 4294967296}}",
	  "host: wave_size is not an integer from 0 to 4294967295" },
	{ "{\"host\": {\"arch\": \"a\"}, \"devices\": [1]}",
	  "devices[0]: missing, or not" },
	{ "{\"host\": {\"arch\": \"a\"}, \"devices\": [{\"arch\": \"a\"}]}",
	  "devices[0]: kind is missing" },
	{ "{\"host\": {\"arch\": \"a\"}, \"devices\": [{\"kind\": \"tpu\", \"arch\": "
	  "\"a\"}]}",
	  "devices[0]: kind is not" },
	{ "{\"host\": {\"arch\": \"a\"}, \"devices\": [{\"kind\": \"hip\", \"arch\": "
	  "\"a\", "
	  "\"pci\": \"3:0\"}]}",
	  "devices[0]: pci is not like" },
	{ "{\"host\": {\"arch\": \"a\"}, \"devices\": [{\"kind\": \"hip\", \"arch\": "
	  "\"a\", "
	  "\"uuid\": \"00\"}]}",
	  "devices[0]: uuid is not" },
	{ "{\"host\": {\"arch\": \"a\"}, \"devices\": [{\"kind\": \"hip\", \"arch\": "
	  "\"a\", "
	  "\"cause_rule\": \"bias\"}]}",
	  "devices[0]: cause_rule is not" },
	{ "{\"host\": ", "facts.json" },
};

START_TEST(a_bad_facts_file_names_the_member)
{
	ck_assert_msg(read_facts(bad[_i].text) == MOEK_BAD_FILE, "%s", bad[_i].text);
	ck_assert_msg(strstr(stage.error.text, bad[_i].message) != NULL, "%s",
	              stage.error.text);
	ck_assert_ptr_nonnull(strstr(stage.error.text, "facts.json"));
}
END_TEST

START_TEST(one_card_seen_twice_is_one)
{
	struct moek_device a = { .kind = MOEK_HIP, .pci = { 0, 3, 0, 0 } }, b = a;

	ck_assert(moek_device_is_same(&a, &b));
	b.pci[1] = 4;
	ck_assert(!moek_device_is_same(&a, &b));
	a.uuid[0] = b.uuid[0] = 7;
	ck_assert(moek_device_is_same(&a, &b));
	b.kind = MOEK_CUDA;
	ck_assert(!moek_device_is_same(&a, &b));
	memset(&a, 0, sizeof(a));
	ck_assert(!moek_device_is_same(
		&a, &a)); /* nothing known: not known to be the same */
}
END_TEST

START_TEST(what_a_plugin_filled_in_is_ended_and_printable)
{
	struct moek_device device;

	memset(&device, 'x', sizeof(device));
	device.name[1] = '\n';
	device.cause[0] = '\x1b';
	moek_device_clean(&device);
	ck_assert_uint_eq(strlen(device.arch), sizeof(device.arch) - 1);
	ck_assert_int_eq(device.name[1], '?');
	ck_assert_int_eq(device.cause[0], '?');
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("device");
	TCase *tests = tcase_create("device");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, begin, end);
	tcase_add_test(tests, this_machine_is_a_host);
	tcase_add_test(tests, cpu_features_are_the_kernels_words);
	tcase_add_test(tests, a_facts_file_stands_for_another_machine);
	tcase_add_test(tests, what_is_written_reads_back);
	tcase_add_loop_test(tests, a_bad_facts_file_names_the_member, 0,
	                    (int)(sizeof(bad) / sizeof(bad[0])));
	tcase_add_test(tests, one_card_seen_twice_is_one);
	tcase_add_test(tests, what_a_plugin_filled_in_is_ended_and_printable);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
