/* SPDX-License-Identifier: MIT */
/* Writing a capsule: the experts first, in two passes, as one of them is in memory at a
 * time. */
#include "config.h"

#include "tools/capsule.h"
#include "tools/numbers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PARTS 6

struct part {
	const char *name;
	const void *data;
	uint64_t bytes;
};

/** The header in the making, then the data behind it. */
struct capsule {
	const struct work *work;
	FILE *file;
	char *header;
	size_t header_bytes;
	FILE *to_header; /* pass 1; NULL: pass 2 */
	uint64_t offset;
};

static uint64_t padded(uint64_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

/** 0 when the disk is full. @shape: "5,256", or "" for @bytes. */
static int put(struct capsule *capsule, const char *name, const char *dtype,
               const char *shape, const struct part *part)
{
	static const char zeros[64];
	int whole = shape[0] == '\0'; /* as bytes, with padding */
	uint64_t bytes = whole ? padded(part->bytes) : part->bytes;

	if (capsule->to_header != NULL) {
		fprintf(capsule->to_header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
		        capsule->offset == 0 ? "{" : ",", name, dtype);
		if (whole)
			fprintf(capsule->to_header, "%" PRIu64, bytes);
		else
			fputs(shape, capsule->to_header);
		fprintf(capsule->to_header,
		        "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
		        capsule->offset, capsule->offset + bytes);
		capsule->offset += bytes;
		return 1;
	}
	return fwrite(part->data, 1, part->bytes, capsule->file) == part->bytes &&
	       fwrite(zeros, 1, bytes - part->bytes, capsule->file) ==
	               bytes - part->bytes;
}

static int put_bytes(struct capsule *capsule, const char *name, const void *data,
                     uint64_t bytes)
{
	const struct part part = { name, data, bytes };

	return put(capsule, name, "U8", "", &part);
}

static int put_rows(struct capsule *capsule, const char *name, const char *dtype,
                    const void *data, const uint64_t sizes[3])
{
	const struct part part = { name, data, sizes[0] * sizes[1] * sizes[2] };
	char shape[64];

	snprintf(shape, sizeof(shape), "%" PRIu64 ",%" PRIu64, sizes[0], sizes[1]);
	return put(capsule, name, dtype, shape, &part);
}

uint64_t capsule_code_bytes(const struct moek_scheme *scheme, uint64_t rows,
                            uint64_t columns)
{
	switch (scheme->weight) {
	case MOEK_INT4:
	case MOEK_MXFP4:
		return rows * ((columns + 1) / 2);
	case MOEK_BF16:
	case MOEK_F16:
		return rows * columns * 2;
	case MOEK_F32:
		return rows * columns * 4;
	default:
		return rows * columns;
	}
}

uint64_t capsule_groups(const struct moek_scheme *scheme, uint64_t columns)
{
	uint64_t size = scheme->group_size != 0 ? scheme->group_size : columns;

	return columns / size + (columns % size != 0);
}

uint64_t capsule_scale_bytes(const struct moek_scheme *scheme)
{
	uint64_t bytes = row_type_bytes(scheme->scale);

	return bytes != 0 ? bytes : 1; /* e8m0 */
}

static void take_apart(const struct moek_scheme *scheme, const struct moek_matrix *m,
                       struct part parts[PARTS])
{
	uint64_t groups = capsule_groups(scheme, m->columns);

	parts[0] = (struct part){ "codes", m->codes,
		                  capsule_code_bytes(scheme, m->rows, m->columns) };
	parts[1] = (struct part){ "scales", m->scales,
		                  m->rows * groups * capsule_scale_bytes(scheme) };
	parts[2] = (struct part){ "zeros", m->zeros, m->rows * groups };
	parts[3] = (struct part){ "column_group", m->column_group, m->columns * 4 };
	parts[4] = (struct part){ "bias", m->bias, m->rows * 4 };
	parts[5] = (struct part){ "input_scale",
		                  scheme->input_scale ? &m->input_scale : NULL, 4 };
}

static int put_matrix(struct capsule *capsule, uint64_t expert, const char *which,
                      const struct moek_scheme *scheme, const struct moek_matrix *m)
{
	struct part parts[PARTS];
	char name[96];

	take_apart(scheme, m, parts);
	for (int i = 0; i < PARTS; i++) {
		if (parts[i].data == NULL)
			continue;
		snprintf(name, sizeof(name), "experts.%" PRIu64 ".%s.%s", expert, which,
		         parts[i].name);
		if (!put_bytes(capsule, name, parts[i].data, parts[i].bytes))
			return 0;
	}
	return 1;
}

/** Of each local expert, as the source gives it. */
static int32_t put_experts(struct capsule *capsule, struct moek_error *error_out)
{
	const struct work *work = capsule->work;
	const struct moek_problem *p = &work->problem;
	const int32_t *map = work->session->expert_map;
	struct moek_source source = { .struct_size = MOEK_INIT(SOURCE) };
	int32_t status = moek_checkpoint_source(work->session->checkpoint, work->index,
	                                        &source, error_out);
	void *scratch = NULL;

	if (status != MOEK_OK)
		return status;
	scratch = malloc(source.scratch_bytes + 1);
	if (scratch == NULL)
		status = tool_error(error_out, MOEK_NO_MEMORY,
		                    "no memory for an expert");
	for (uint64_t e = 0; e < p->experts && status == MOEK_OK; e++) {
		struct moek_expert expert = {
			.gate = { .struct_size = MOEK_INIT(MATRIX) },
			.up = { .struct_size = MOEK_INIT(MATRIX) },
			.down = { .struct_size = MOEK_INIT(MATRIX) },
		};

		if (map != NULL && map[e] < 0)
			continue;
		status = source.expert(source.self, e, scratch, &expert, error_out);
		if (status == MOEK_OK &&
		    (!put_matrix(capsule, e, "gate", &p->gate_up, &expert.gate) ||
		     (p->gated &&
		      !put_matrix(capsule, e, "up", &p->gate_up, &expert.up)) ||
		     !put_matrix(capsule, e, "down", &p->down, &expert.down)))
			status = tool_error(error_out, MOEK_BAD_FILE,
			                    "cannot write: %s", strerror(errno));
	}
	free(scratch);
	moek_source_close(&source);
	return status;
}

static const char *dtype_of(uint32_t type)
{
	return type == MOEK_F32 ? "F32" : type == MOEK_F16 ? "F16" : "BF16";
}

static int put_call(struct capsule *capsule, const char *backend,
                    const struct moek_numerics *numerics, int ran)
{
	const struct work *work = capsule->work;
	const struct moek_problem *p = &work->problem;
	const uint64_t input[3] = { work->tokens, p->hidden,
		                    row_type_bytes(p->input_type) };
	const uint64_t output[3] = { work->tokens, p->hidden,
		                     row_type_bytes(p->output_type) };
	const uint64_t slots[3] = { work->tokens, p->top_k, 4 };
	const uint64_t map[3] = { p->experts, 1, 4 };

	return put_bytes(capsule, "problem", p, p->struct_size) &&
	       put_bytes(capsule, "numerics", numerics, numerics->struct_size) &&
	       put_bytes(capsule, "label", work->name, strlen(work->name)) &&
	       put_bytes(capsule, "backend", backend, strlen(backend)) &&
	       put_rows(capsule, "topk_ids", "I32", work_ids(work), slots) &&
	       put_rows(capsule, "topk_weights", "F32", work_weights(work), slots) &&
	       (work->session->expert_map == NULL ||
	        put_rows(capsule, "expert_map", "I32", work->session->expert_map,
	                 map)) &&
	       put_rows(capsule, "hidden_in", dtype_of(p->input_type), work->input,
	                input) &&
	       (!ran || put_rows(capsule, "moe_out", dtype_of(p->output_type),
	                         work->output, output));
}

static int32_t put_all(struct capsule *capsule, int ran, struct moek_error *error_out)
{
	const struct moek_choice *choice = moek_layer_choice(capsule->work->shown);
	struct moek_numerics numerics = { .struct_size = MOEK_INIT(NUMERICS) };
	int32_t status = put_experts(capsule, error_out);

	if (status != MOEK_OK)
		return status;
	moek_choice_numerics(choice, &numerics);
	return put_call(capsule, moek_choice_winner(choice), &numerics, ran)
	               ? MOEK_OK
	               : tool_error(error_out, MOEK_BAD_FILE, "cannot write: %s",
	                            strerror(errno));
}

static int write_header(struct capsule *capsule)
{
	uint64_t bytes = padded(capsule->header_bytes + 8) - 8;
	uint8_t length[8];

	for (int i = 0; i < 8; i++)
		length[i] = (uint8_t)(bytes >> 8 * i);
	return fwrite(length, 1, 8, capsule->file) == 8 &&
	       fprintf(capsule->file, "%-*s", (int)bytes, capsule->header) ==
	               (int)bytes;
}

static int32_t write_file(struct capsule *capsule, const char *path, int ran,
                          struct moek_error *error_out)
{
	int32_t status;

	capsule->to_header = open_memstream(&capsule->header, &capsule->header_bytes);
	if (capsule->to_header == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY, "no memory for a header");
	status = put_all(capsule, ran, error_out);
	fputc('}', capsule->to_header);
	if (fclose(capsule->to_header) != 0 && status == MOEK_OK)
		status = tool_error(error_out, MOEK_NO_MEMORY,
		                    "no memory for a header");
	capsule->to_header = NULL;
	if (status != MOEK_OK)
		return status;
	capsule->file = fopen(path, "wbe");
	if (capsule->file == NULL)
		return tool_error(error_out, MOEK_BAD_FILE, "cannot write: %s",
		                  strerror(errno));
	status = write_header(capsule)
	                 ? put_all(capsule, ran, error_out)
	                 : tool_error(error_out, MOEK_BAD_FILE, "cannot write: %s",
	                              strerror(errno));
	if (fclose(capsule->file) != 0 && status == MOEK_OK)
		status = tool_error(error_out, MOEK_BAD_FILE, "cannot write: %s",
		                    strerror(errno));
	return status;
}

static void write_report(const struct work *work, const char *path)
{
	char *text = moek_choice_report(moek_layer_choice(work->shown), MOEK_JSON);
	FILE *file = text != NULL ? fopen(path, "we") : NULL;

	if (file == NULL || fprintf(file, "%s\n", text) < 0)
		tool_say("warning: %s: cannot write the report", path);
	if (file != NULL)
		fclose(file);
	moek_free(text);
}

int32_t capsule_write(const struct work *work, int ran, struct moek_error *error_out)
{
	struct capsule capsule = { .work = work };
	const char *folder = work->options->capsule;
	char path[4096], cause[sizeof(error_out->text)];
	int32_t status;

	if (mkdir(folder, 0777) != 0 && errno != EEXIST)
		return tool_error(error_out, MOEK_BAD_FILE, "%s: %s", folder,
		                  strerror(errno));
	snprintf(path, sizeof(path), "%s/%s.safetensors", folder, work->name);
	status = write_file(&capsule, path, ran, error_out);
	free(capsule.header);
	if (status != MOEK_OK) {
		remove(path);
		snprintf(cause, sizeof(cause), "%s", error_out->text);
		return tool_error(error_out, status, "%s: %s", path, cause);
	}
	snprintf(path, sizeof(path), "%s/%s.json", folder, work->name);
	write_report(work, path);
	return MOEK_OK;
}
