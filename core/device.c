/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/device.h"

#include "core/json.h"
#include "core/status.h"

#include <ctype.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define CPUINFO_MOST (1u << 18) /* bytes: the first processors are enough */
#define FACTS_MOST (1u << 20)
#define DEVICES_MOST 256

/* ---- this machine ---- */

/** "key : value" of the first line that has @key; the value's length, or 0. */
static size_t find_value(const char *text, const char *key, const char **value_out)
{
	size_t length = strlen(key);

	for (const char *line = text; line != NULL && *line != '\0';) {
		const char *end = strchr(line, '\n'), *at = line + length;

		if (strncmp(line, key, length) == 0) {
			at += strspn(at, " \t");
			if (*at == ':') {
				at++;
				at += strspn(at, " \t");
				*value_out = at;
				return end != NULL && end > at ? (size_t)(end - at)
				       : end == NULL           ? strlen(at)
				                               : 0;
			}
		}
		line = end != NULL ? end + 1 : NULL;
	}
	return 0;
}

int moek_cpuinfo_parse(const char *text, struct moek_device *host_out,
                       char **features_out)
{
	const char *name = "", *features = "";
	size_t name_length = find_value(text, "model name", &name);
	size_t length = find_value(text, "flags", &features);

	if (length == 0)
		length = find_value(text, "Features", &features);
	*features_out = strndup(features, length);
	if (*features_out == NULL)
		return 0;
	snprintf(host_out->name, sizeof(host_out->name), "%.*s", (int)name_length,
	         name);
	host_out->features = *features_out;
	moek_device_clean(host_out);
	return 1;
}

static char *read_text(const char *path, size_t most)
{
	char *text = malloc(most + 1);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t bytes = 0;
	ssize_t got = 1;

	while (text != NULL && fd >= 0 && got > 0 && bytes < most) {
		got = read(fd, text + bytes, most - bytes);
		bytes += got > 0 ? (size_t)got : 0;
	}
	if (fd >= 0)
		close(fd);
	if (text != NULL)
		text[bytes] = '\0';
	return text;
}

static int32_t ask_this_machine(struct moek_machine *machine,
                                struct moek_error *error_out)
{
	struct moek_device *host = &machine->host;
	char *cpuinfo = read_text("/proc/cpuinfo", CPUINFO_MOST);
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	struct utsname names;
	cpu_set_t cpus;
	int parsed = cpuinfo != NULL &&
	             moek_cpuinfo_parse(cpuinfo, host, &machine->features);

	free(cpuinfo);
	if (!parsed)
		return moek_fail_memory(error_out, "device facts");
	if (uname(&names) == 0)
		snprintf(host->arch, sizeof(host->arch), "%.31s", names.machine);
	if (pages > 0 && page > 0)
		host->memory_bytes = (uint64_t)pages * (uint64_t)page;
	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		host->compute_units = (uint32_t)CPU_COUNT(&cpus);
	return MOEK_OK;
}

/* ---- a facts file ---- */

struct facts {
	const char *path, *where; /* "devices[1]" */
	struct moek_error *error_out;
};

__attribute__((format(printf, 2, 3))) static int32_t refuse(const struct facts *facts,
                                                            const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	return moek_fail(facts->error_out, MOEK_BAD_FILE, 0, "%s: %s: %s", facts->path,
	                 facts->where, text);
}

static int32_t read_string(const struct facts *facts, const char *key,
                           const struct moek_json *value, char *text_out, size_t bytes)
{
	size_t length;
	const char *text = moek_json_string(value, &length);

	if (text == NULL)
		return refuse(facts, "%s is not a string", key);
	if (length >= bytes || strlen(text) != length)
		return refuse(facts, "%s has %zu bytes, at most %zu fit, and no NUL",
		              key, length, bytes - 1);
	memcpy(text_out, text, length + 1);
	return MOEK_OK;
}

static int32_t read_number(const struct facts *facts, const char *key,
                           const struct moek_json *value, uint64_t most,
                           uint64_t *number_out)
{
	int64_t number;

	if (!moek_json_integer(value, &number) || number < 0 || (uint64_t)number > most)
		return refuse(facts, "%s is not an integer from 0 to %llu", key,
		              (unsigned long long)most);
	*number_out = (uint64_t)number;
	return MOEK_OK;
}

static int32_t read_u32(const struct facts *facts, const char *key,
                        const struct moek_json *value, uint32_t *number_out)
{
	uint64_t number = 0;
	int32_t status = read_number(facts, key, value, UINT32_MAX, &number);

	if (status == MOEK_OK)
		*number_out = (uint32_t)number;
	return status;
}

static int32_t read_kind(const struct facts *facts, const struct moek_json *value,
                         uint32_t *kind_out)
{
	const char *name = moek_json_string(value, NULL);

	for (uint32_t kind = 1; name != NULL; kind++) {
		if (strcmp(moek_device_kind_name(kind), "?") == 0)
			break;
		if (strcmp(moek_device_kind_name(kind), name) == 0) {
			*kind_out = kind;
			return MOEK_OK;
		}
	}
	return refuse(facts, "kind is not hip or cuda");
}

static int32_t read_uuid(const struct facts *facts, const struct moek_json *value,
                         uint8_t uuid_out[16])
{
	char text[33];
	int32_t status = read_string(facts, "uuid", value, text, sizeof(text));

	if (status != MOEK_OK)
		return status;
	if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
		return refuse(facts, "uuid is not 32 digits of 0-9a-f");
	for (size_t i = 0; i < 16; i++) {
		char digits[3] = { text[2 * i], text[2 * i + 1], '\0' };

		uuid_out[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	return MOEK_OK;
}

static int32_t read_pci(const struct facts *facts, const struct moek_json *value,
                        uint32_t pci_out[4])
{
	char text[32];
	int used = 0;
	int32_t status = read_string(facts, "pci", value, text, sizeof(text));

	if (status != MOEK_OK)
		return status;
	if (sscanf(text, "%4x:%2x:%2x.%1x%n", &pci_out[0], &pci_out[1], &pci_out[2],
	           &pci_out[3], &used) != 4 ||
	    text[used] != '\0')
		return refuse(facts, "pci is not like 0000:03:00.0");
	return MOEK_OK;
}

static int32_t read_cause_rule(const struct facts *facts, const struct moek_json *value,
                               uint32_t *rule_out)
{
	const char *name = moek_json_string(value, NULL);

	for (uint32_t rule = 700; name != NULL && rule < 800; rule++) {
		if (strcmp(moek_rule_name(rule), name) == 0) {
			*rule_out = rule;
			return MOEK_OK;
		}
	}
	return refuse(facts, "cause_rule is not one like device_driver");
}

static int32_t read_member(const struct facts *facts, const char *key,
                           const struct moek_json *value, struct moek_device *device)
{
	if (strcmp(key, "kind") == 0)
		return read_kind(facts, value, &device->kind);
	if (strcmp(key, "arch") == 0)
		return read_string(facts, key, value, device->arch,
		                   sizeof(device->arch));
	if (strcmp(key, "name") == 0)
		return read_string(facts, key, value, device->name,
		                   sizeof(device->name));
	if (strcmp(key, "cause") == 0)
		return read_string(facts, key, value, device->cause,
		                   sizeof(device->cause));
	if (strcmp(key, "cause_rule") == 0)
		return read_cause_rule(facts, value, &device->cause_rule);
	if (strcmp(key, "uuid") == 0)
		return read_uuid(facts, value, device->uuid);
	if (strcmp(key, "pci") == 0)
		return read_pci(facts, value, device->pci);
	if (strcmp(key, "ordinal") == 0)
		return read_u32(facts, key, value, &device->ordinal);
	if (strcmp(key, "memory_bytes") == 0)
		return read_number(facts, key, value, INT64_MAX, &device->memory_bytes);
	if (strcmp(key, "compute_units") == 0)
		return read_u32(facts, key, value, &device->compute_units);
	if (strcmp(key, "wave_size") == 0)
		return read_u32(facts, key, value, &device->wave_size);
	return refuse(facts, "unknown member %.40s", key);
}

static int32_t read_device(const struct facts *facts, const struct moek_json *value,
                           char **features_out, struct moek_device *device_out)
{
	struct moek_device device = { .struct_size = MOEK_DEVICE_SIZE_1_0 };
	void *cursor = NULL;
	const struct moek_json *member;
	const char *key;
	size_t bytes;
	int32_t status = MOEK_OK;

	if (value == NULL || moek_json_kind(value) != MOEK_JSON_OBJECT)
		return refuse(facts, "missing, or not an object");
	while (status == MOEK_OK &&
	       (member = moek_json_next(value, &cursor, &key, &bytes)) != NULL) {
		if (strlen(key) != bytes)
			return refuse(facts, "a member's name holds a NUL");
		if (features_out != NULL && strcmp(key, "features") == 0) {
			const char *text = moek_json_string(member, NULL);

			if (text == NULL)
				return refuse(facts, "features is not a string");
			free(*features_out);
			*features_out = strdup(text);
			if (*features_out == NULL)
				return moek_fail_memory(facts->error_out,
				                        "device facts");
			device.features = *features_out;
		} else if (features_out == NULL || strcmp(key, "kind") != 0) {
			status = read_member(facts, key, member, &device);
		}
	}
	if (status == MOEK_OK && device.arch[0] == '\0')
		return refuse(facts, "arch is missing");
	if (status == MOEK_OK && features_out == NULL && device.kind == MOEK_HOST)
		return refuse(facts, "kind is missing");
	if (status == MOEK_OK) {
		moek_device_clean(&device);
		*device_out = device;
	}
	return status;
}

static int32_t read_devices(struct facts *facts, const struct moek_json *list,
                            struct moek_machine *machine)
{
	size_t count = moek_json_count(list);
	char where[32];

	facts->where = "devices";
	if (list == NULL || moek_json_kind(list) != MOEK_JSON_ARRAY ||
	    count > DEVICES_MOST)
		return refuse(facts, "expected an array of at most %d devices",
		              DEVICES_MOST);
	machine->devices = calloc(count + 1, sizeof(*machine->devices));
	if (machine->devices == NULL)
		return moek_fail_memory(facts->error_out, "device facts");
	for (size_t i = 0; i < count; i++) {
		int32_t status;

		snprintf(where, sizeof(where), "devices[%zu]", i);
		facts->where = where;
		status = read_device(facts, moek_json_at(list, i), NULL,
		                     &machine->devices[i]);
		if (status != MOEK_OK)
			return status;
		machine->device_count = i + 1;
	}
	return MOEK_OK;
}

static int32_t read_facts(const char *path, struct moek_machine *machine,
                          struct moek_error *error_out)
{
	struct facts facts = { .path = path, .where = "host", .error_out = error_out };
	const struct moek_json *machine_json;
	struct moek_json *root;
	int32_t status = moek_json_read(path, FACTS_MOST, &root, error_out);

	if (status != MOEK_OK)
		return status;
	/* the report of another machine's registry is a facts file as it stands */
	machine_json = moek_json_get(root, "machine");
	if (machine_json == NULL)
		machine_json = root;
	status = read_device(&facts, moek_json_get(machine_json, "host"),
	                     &machine->features, &machine->host);
	if (status == MOEK_OK)
		status = read_devices(&facts, moek_json_get(machine_json, "devices"),
		                      machine);
	machine->facts_file = status == MOEK_OK ? strdup(path) : NULL;
	if (status == MOEK_OK && machine->facts_file == NULL)
		status = moek_fail_memory(error_out, "device facts");
	moek_json_free(root);
	return status;
}

int32_t moek_machine_open(const char *facts_file, struct moek_machine *machine_out,
                          struct moek_error *error_out)
{
	struct moek_machine machine = { .host.struct_size = MOEK_DEVICE_SIZE_1_0 };
	int32_t status = facts_file != NULL
	                         ? read_facts(facts_file, &machine, error_out)
	                         : ask_this_machine(&machine, error_out);

	if (status != MOEK_OK) {
		moek_machine_close(&machine);
		return status;
	}
	machine.host.kind = MOEK_HOST;
	*machine_out = machine;
	return MOEK_OK;
}

void moek_machine_close(struct moek_machine *machine)
{
	free(machine->features);
	free(machine->devices);
	free(machine->facts_file);
	memset(machine, 0, sizeof(*machine));
}

/* ---- any device ---- */

static void clean(char *text, size_t bytes)
{
	text[bytes - 1] = '\0';
	for (; *text != '\0'; text++)
		if (iscntrl((unsigned char)*text))
			*text = '?';
}

void moek_device_clean(struct moek_device *device)
{
	clean(device->arch, sizeof(device->arch));
	clean(device->name, sizeof(device->name));
	clean(device->cause, sizeof(device->cause));
}

int moek_device_is_same(const struct moek_device *a, const struct moek_device *b)
{
	static const uint8_t unknown[16];
	static const uint32_t nowhere[4];

	if (a->kind != b->kind)
		return 0;
	if (memcmp(a->pci, nowhere, sizeof(a->pci)) != 0 &&
	    memcmp(a->pci, b->pci, sizeof(a->pci)) == 0)
		return 1;
	return memcmp(a->uuid, unknown, sizeof(a->uuid)) != 0 &&
	       memcmp(a->uuid, b->uuid, sizeof(a->uuid)) == 0;
}

static void set_text(struct moek_json *object, const char *key, const char *text)
{
	if (text != NULL && text[0] != '\0')
		moek_json_set(object, key, moek_json_new_string(text));
}

static void set_number(struct moek_json *object, const char *key, uint64_t number)
{
	if (number != 0)
		moek_json_set(object, key,
		              moek_json_new_integer(number < INT64_MAX ? (int64_t)number
		                                                       : INT64_MAX));
}

struct moek_json *moek_device_json(const struct moek_device *device)
{
	static const uint8_t unknown[16];
	static const uint32_t nowhere[4];
	struct moek_json *object = moek_json_new_object();
	char text[40];

	set_text(object, "kind", moek_device_kind_name(device->kind));
	set_text(object, "arch", device->arch);
	set_text(object, "name", device->name);
	if (device->kind != MOEK_HOST) {
		moek_json_set(object, "ordinal",
		              moek_json_new_integer(device->ordinal));
	}
	if (memcmp(device->pci, nowhere, sizeof(nowhere)) != 0) {
		snprintf(text, sizeof(text), "%04x:%02x:%02x.%x",
		         device->pci[0] & 0xffff, device->pci[1] & 0xff,
		         device->pci[2] & 0xff, device->pci[3] & 0xf);
		set_text(object, "pci", text);
	}
	if (memcmp(device->uuid, unknown, sizeof(unknown)) != 0) {
		for (size_t i = 0; i < 16; i++)
			snprintf(text + 2 * i, 3, "%02x", device->uuid[i]);
		set_text(object, "uuid", text);
	}
	set_number(object, "memory_bytes", device->memory_bytes);
	set_number(object, "compute_units", device->compute_units);
	set_number(object, "wave_size", device->wave_size);
	set_text(object, "features", device->features);
	if (device->cause_rule != 0)
		set_text(object, "cause_rule", moek_rule_name(device->cause_rule));
	set_text(object, "cause", device->cause);
	return object;
}
