/* SPDX-License-Identifier: MIT */
#include "aiter.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 512, FIELDS = 10, EM_AMDGPU = 224, MACH_GFX950 = 0x4f };

/* strictly this: a file with other columns is of an AITER that this was not written for
 */
static const char header[] =
	"knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n,flat";
enum {
	KNL_NAME,
	CO_NAME,
	ATM,
	VSKIP,
	SMF,
	TG_NUM_PER_CU,
	PS,
	SUB_GU_M,
	SUB_GU_N,
	FLAT
};

static void state(struct aiter *aiter, enum aiter_state what, const char *cause)
{
	aiter->state = what;
	snprintf(aiter->cause, sizeof(aiter->cause), "%.95s", cause);
}

/* ----------------------------------------------------------------------------- the CSV
 */

/* "fmoe_x.csv:3: why" */
static int bad_line(struct aiter *aiter, const char *name, unsigned int line,
                    const char *why)
{
	char cause[96];

	snprintf(cause, sizeof(cause), "%.48s:%u: %.34s", name, line, why);
	state(aiter, AITER_BROKEN, cause);
	return 0;
}

static int is_number(const char *text)
{
	size_t digits = strspn(text, "0123456789");

	return digits > 0 && digits <= 6 && text[digits] == '\0';
}

static int is_name(const char *text)
{
	const char *end = text + strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	                                      "abcdefghijklmnopqrstuvwxyz0123456789_");

	return end != text && *end == '\0';
}

/* a file's name in the folder itself: letters, digits, _ and ".co" */
static int is_object(char *text)
{
	size_t length = strlen(text);
	int good;

	if (length < 4 || strcmp(text + length - 3, ".co") != 0)
		return 0;
	text[length - 3] = '\0';
	good = is_name(text);
	text[length - 3] = '.';
	return good;
}

/* cut at the commas; 0: not as many as there must be */
static int split(char *line, char **fields_out)
{
	int count = 0;

	for (;;) {
		char *comma = strchr(line, ',');

		if (count == FIELDS)
			return 0;
		fields_out[count++] = line;
		if (comma == NULL)
			return count == FIELDS;
		*comma = '\0';
		line = comma + 1;
	}
}

/* is the file a code object for gfx950? */
static int is_code_object(const char *path)
{
	unsigned char head[64];
	FILE *file = fopen(path, "re");
	int good;

	if (file == NULL)
		return 0;
	good = fread(head, 1, sizeof(head), file) == sizeof(head) &&
	       memcmp(head, "\177ELF\2\1", 6) == 0 &&
	       (head[18] | head[19] << 8) == EM_AMDGPU && head[48] == MACH_GFX950;
	fclose(file);
	return good;
}

/* keep a row of a flat kernel that skips nothing; others are checked and passed over */
static int read_row(struct aiter *aiter, const char *name, unsigned int line,
                    char *text, uint32_t function)
{
	struct aiter_kernel *kernel = &aiter->kernels[aiter->count];
	char *fields[FIELDS];
	int i;

	if (!split(text, fields))
		return bad_line(aiter, name, line, "not ten fields");
	if (!is_name(fields[KNL_NAME]) ||
	    strlen(fields[KNL_NAME]) >= sizeof(kernel->name))
		return bad_line(aiter, name, line, "knl_name is no symbol");
	if (!is_object(fields[CO_NAME]))
		return bad_line(aiter, name, line, "co_name is no file.co");
	for (i = ATM; i < FIELDS; i++)
		if (!is_number(fields[i]))
			return bad_line(aiter, name, line, "not a number");
	if (strcmp(fields[FLAT], "1") != 0 || atoi(fields[VSKIP]) != 0 ||
	    atoi(fields[SMF]) != 0 || atoi(fields[PS]) != 0)
		return 1;
	if (atoi(fields[SUB_GU_N]) == 0)
		return bad_line(aiter, name, line, "subGU_n is 0");
	if (aiter->count == AITER_MOST_KERNELS)
		return bad_line(aiter, name, line, "too many kernels");
	strcpy(kernel->name, fields[KNL_NAME]);
	if (snprintf(kernel->path, sizeof(kernel->path), "%s%s", aiter->folder,
	             fields[CO_NAME]) >= (int)sizeof(kernel->path))
		return bad_line(aiter, name, line, "the path is too long");
	if (!is_code_object(kernel->path))
		return bad_line(aiter, name, line, "co_name: no code for gfx950");
	kernel->function = function;
	kernel->columns = (uint32_t)atoi(fields[SUB_GU_N]);
	aiter->count++;
	return 1;
}

/* a whole line without its end; 0: too long, or cut off by the end of the file */
static int read_line(FILE *file, char *line)
{
	size_t length;

	if (fgets(line, LINE_BYTES, file) == NULL)
		return -1;
	length = strlen(line);
	if (length == 0 || line[length - 1] != '\n')
		return 0;
	line[--length] = '\0';
	if (length > 0 && line[length - 1] == '\r')
		line[length - 1] = '\0';
	return 1;
}

static int read_csv(struct aiter *aiter, FILE *file, const char *name,
                    uint32_t function)
{
	unsigned int number = 1;
	char line[LINE_BYTES];
	int got = read_line(file, line), good = 1;

	if (got != 1 || strcmp(line, header) != 0)
		return bad_line(aiter, name, 1, "other columns than expected");
	while (good && (got = read_line(file, line)) == 1)
		good = read_row(aiter, name, ++number, line, function);
	if (good && got == 0)
		good = bad_line(aiter, name, number + 1, "cut off, or too long");
	return good;
}

/* 1: read; 0: broken; -1: no such file */
static int read_folder(struct aiter *aiter, const char *folder,
                       const char *function_name, uint32_t function)
{
	char path[AITER_PATH_BYTES], name[64];
	FILE *file;
	int good;

	snprintf(name, sizeof(name), "fmoe_bf16_pertokenMXfp4_g1u1_%s.csv",
	         function_name);
	if (snprintf(aiter->folder, sizeof(aiter->folder), "%s/fmoe/%s/", folder,
	             function_name) >= (int)sizeof(aiter->folder) ||
	    snprintf(path, sizeof(path), "%s%s", aiter->folder, name) >=
	            (int)sizeof(path))
		return -1;
	file = fopen(path, "re");
	if (file == NULL && (errno == ENOENT || errno == ENOTDIR))
		return -1;
	if (file == NULL) {
		snprintf(path, sizeof(path), "%s: %.40s", name, strerror(errno));
		state(aiter, AITER_BROKEN, path);
		return 0;
	}
	good = read_csv(aiter, file, name, function);
	fclose(file);
	return good;
}

/* AITER_ASM_DIR is the folder of the card or that of all cards; a package has a folder
 * aiter_meta beside it or in it, a checkout hsa */
static const char *const places[] = {
	"",
	"/gfx950",
	"/hsa/gfx950",
	"/aiter_meta/hsa/gfx950",
	"/../aiter_meta/hsa/gfx950",
};

void aiter_find(struct aiter *aiter, const char *dir)
{
	char folder[AITER_PATH_BYTES];
	size_t i;
	int found = -1;

	if (dir == NULL || dir[0] == '\0') {
		state(aiter, AITER_ABSENT, "aiter_dir is not set");
		return;
	}
	for (i = 0; found < 0 && i < sizeof(places) / sizeof(places[0]); i++)
		if (snprintf(folder, sizeof(folder), "%s%s", dir, places[i]) <
		    (int)sizeof(folder))
			found = read_folder(aiter, folder, "silu", MOEK_SILU);
	if (found < 0) {
		/* the end of a long path tells more than its beginning */
		size_t length = strlen(dir), cut = length > 56 ? length - 56 : 0;
		char cause[96];

		snprintf(cause, sizeof(cause), "no fmoe/silu/*.csv in %s%s",
		         cut != 0 ? "..." : "", dir + cut);
		state(aiter, AITER_ABSENT, cause);
		return;
	}
	if (found == 1 && read_folder(aiter, folder, "gelu", MOEK_GELU) != 0)
		aiter->state = AITER_FOUND;
	if (aiter->state == AITER_FOUND && aiter->count == 0)
		state(aiter, AITER_BROKEN, "no flat kernel in its lists");
}

/* -------------------------------------------------------------------------- the choice
 */

int aiter_covers(const struct aiter *aiter, const struct moek_problem *problem)
{
	uint32_t i;

	/* the rule that they quantise by, within; sums are made by bf16 atomics */
	if (aiter->state != AITER_FOUND ||
	    problem->activations != MOEK_A4_MXFP4_ROUND_UP ||
	    (problem->must_understand & (MOEK_DETERMINISTIC | MOEK_WEIGHT_ON_INPUT)) !=
	            0 ||
	    problem->gate_up.bias || problem->down.bias || problem->limit > 0.0f ||
	    problem->input_type != MOEK_BF16 || problem->output_type != MOEK_BF16 ||
	    problem->hidden % 256 != 0 || problem->intermediate % 128 != 0 ||
	    problem->top_k > AITER_MOST_TOP_K)
		return 0;
	for (i = 0; i < aiter->count; i++)
		if (aiter->kernels[i].function == problem->activation &&
		    problem->intermediate % aiter->kernels[i].columns == 0)
			return 1;
	return 0;
}

struct aiter_kernel *aiter_choose(struct aiter *aiter,
                                  const struct moek_problem *problem, uint64_t slots,
                                  uint32_t compute_units)
{
	const uint64_t units = compute_units != 0 ? compute_units : 1;
	struct aiter_kernel *best = NULL;
	uint64_t fewest = 0, idlest = 0;
	uint32_t i;

	for (i = 0; i < aiter->count; i++) {
		struct aiter_kernel *kernel = &aiter->kernels[i];
		uint64_t groups, rounds, idle;

		if (kernel->function != problem->activation ||
		    problem->intermediate % kernel->columns != 0)
			continue;
		groups = problem->intermediate / kernel->columns * slots;
		rounds = (groups + units - 1) / units;
		idle = rounds * units - groups;
		if (best == NULL || rounds < fewest ||
		    (rounds == fewest && idle < idlest)) {
			best = kernel;
			fewest = rounds;
			idlest = idle;
		}
	}
	return best;
}

/* -------------------------------------------------------------------------- the launch
 */

static void put(unsigned char *at, uint64_t value, int bytes)
{
	int i;

	for (i = 0; i < bytes; i++)
		at[i] = (unsigned char)(value >> 8 * i);
}

void aiter_pack(const struct moek_problem *problem, const struct aiter_call *call,
                uint32_t columns, unsigned char *kernarg_out)
{
	const uint64_t hidden = problem->hidden, intermediate = problem->intermediate;
	/* each in a slot of 16 bytes; not given: 0 */
	const void *const pointers[] = {
		call->output,
		call->input,
		call->gate_up,
		call->topk_ids, /* valid, and not looked at: there is no sorted order */
		call->down,
		NULL, /* scales of the input: it is quantised within */
		call->gate_up_scales,
		call->down_scales,
		NULL,
		call->topk_ids,
		call->topk_weights,
		call->topk_ids, /* as above */
	};
	const uint64_t numbers[] = {
		hidden,
		intermediate,
		call->tokens,
		problem->experts_local,
		hidden * 2,
		hidden / 2,
		intermediate / 2,
		hidden * 2,
		hidden / 2 * 2 * intermediate,
		intermediate / 2 * hidden,
		call->gate_up_scale_stride,
		call->down_scale_stride,
		0,
		problem->top_k,
		0, /* persistent groups: none */
		(intermediate + columns - 1) / columns,
	};
	const size_t count = sizeof(pointers) / sizeof(pointers[0]);
	size_t i;

	memset(kernarg_out, 0, AITER_KERNARG_BYTES);
	for (i = 0; i < count; i++)
		put(kernarg_out + 16 * i, (uint64_t)(uintptr_t)pointers[i], 8);
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		put(kernarg_out + 16 * (count + i), numbers[i], 4);
}

/* the whole file, from the host's memory; NULL: it has been told why */
static void *read_object(struct gpu_plugin *plugin, const char *path)
{
	const struct moek_host *host = &plugin->host;
	FILE *file = fopen(path, "re");
	void *bytes = NULL;
	char text[256];
	long size = -1;

	if (file != NULL && fseek(file, 0, SEEK_END) == 0)
		size = ftell(file);
	if (size > 0)
		bytes = host->alloc(host->self, (uint64_t)size, 4096);
	if (bytes != NULL) {
		rewind(file);
		if (fread(bytes, 1, (size_t)size, file) != (size_t)size) {
			host->free(host->self, bytes);
			bytes = NULL;
		}
	}
	if (file != NULL)
		fclose(file);
	if (bytes == NULL) {
		snprintf(text, sizeof(text), "cannot read %.200s", path);
		host->log(host->self, 3, text);
	}
	return bytes;
}

int32_t aiter_load(struct gpu_plugin *plugin, const struct moek_device *device,
                   struct aiter_kernel *kernel)
{
	const char *const names[] = { kernel->name, NULL };
	int32_t status = MOEK_OK;

	if (device->ordinal >= GPU_MOST_DEVICES)
		return MOEK_DEVICE;
	pthread_mutex_lock(&plugin->lock);
	if (kernel->image == NULL)
		kernel->image = read_object(plugin, kernel->path);
	if (kernel->image == NULL)
		status = MOEK_DEVICE;
	else if (kernel->loaded[device->ordinal] == NULL)
		status = gpu_load_kernels(&plugin->context, device, kernel->image,
		                          names, &kernel->loaded[device->ordinal]);
	pthread_mutex_unlock(&plugin->lock);
	return status;
}

void aiter_end(struct aiter *aiter, const struct moek_host *host)
{
	uint32_t i;

	for (i = 0; i < aiter->count; i++)
		if (aiter->kernels[i].image != NULL)
			host->free(host->self, aiter->kernels[i].image);
}

int32_t aiter_launch(const struct gpu_context *context,
                     const struct aiter_kernel *kernel, uint32_t ordinal,
                     const struct moek_problem *problem, const struct aiter_call *call,
                     void *stream)
{
	/* HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END */
	static char *const marks[] = { (char *)1, (char *)2, (char *)3 };
	unsigned char kernarg[AITER_KERNARG_BYTES];
	size_t bytes = sizeof(kernarg);
	void *extra[] = { marks[0], kernarg, marks[1], &bytes, marks[2] };
	unsigned int groups = (unsigned int)(problem->intermediate / kernel->columns);

	aiter_pack(problem, call, kernel->columns, kernarg);
	return gpu_status(context,
	                  context->driver->launch(kernel->loaded[ordinal], groups,
	                                          (unsigned int)problem->top_k,
	                                          (unsigned int)call->tokens, 256, 1, 1,
	                                          0, stream, NULL, extra),
	                  "launching AITER's kernel");
}
