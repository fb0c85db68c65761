/* SPDX-License-Identifier: MIT */
/* moek inspect --tensors: every tensor, what it is for, and what values it holds. */
#include "config.h"

#include "tools/numbers.h"
#include "tools/tool.h"
#include "tools/writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <moek/formats.h>

/** How the bytes of a dtype become numbers. */
enum kind {
	KIND_NONE,
	KIND_ROWS,
	KIND_E4M3,
	KIND_E8M0,
	KIND_U8,
	KIND_I8,
	KIND_I32,
	KIND_I64
};

static const struct dtype {
	const char *name;
	enum kind kind;
	uint32_t bytes;
} dtypes[] = {
	{ "F32", KIND_ROWS, 4 },     { "BF16", KIND_ROWS, 2 },
	{ "F16", KIND_ROWS, 2 },     { "F8_E4M3", KIND_E4M3, 1 },
	{ "F8_E8M0", KIND_E8M0, 1 }, { "U8", KIND_U8, 1 },
	{ "I8", KIND_I8, 1 },        { "I32", KIND_I32, 4 },
	{ "I64", KIND_I64, 8 },
};

/** Of the values of one tensor. Of codes and packed words: as whole numbers. */
struct statistics {
	double least, most; /* of those that are finite; NaN: none is */
	uint64_t zeros, nans, infinities;
	int known; /* 0: the dtype is none of ours */
};

static const struct dtype *find_dtype(const char *name)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
		if (strcmp(dtypes[i].name, name) == 0)
			return &dtypes[i];
	return NULL;
}

static double value_at(const struct moek_tensor *tensor, const struct dtype *dtype,
                       uint64_t i)
{
	const uint8_t *bytes = (const uint8_t *)tensor->data + i * dtype->bytes;
	int64_t wide;
	int32_t narrow;

	switch (dtype->kind) {
	case KIND_ROWS:
		return (double)row_get(tensor->data, tensor->type, i);
	case KIND_E4M3:
		return (double)moek_e4m3_to_f32(*bytes);
	case KIND_E8M0:
		return (double)moek_e8m0_to_f32(*bytes);
	case KIND_I8:
		return (int8_t)*bytes;
	case KIND_I32:
		memcpy(&narrow, bytes, sizeof(narrow));
		return narrow;
	case KIND_I64:
		memcpy(&wide, bytes, sizeof(wide));
		return (double)wide;
	default:
		return *bytes;
	}
}

static struct statistics statistics_of(const struct moek_tensor *tensor)
{
	const struct dtype *dtype = find_dtype(tensor->dtype);
	struct statistics s = { .least = NAN, .most = NAN, .known = dtype != NULL };

	for (uint64_t i = 0; dtype != NULL && i < tensor->bytes / dtype->bytes; i++) {
		double value = value_at(tensor, dtype, i);

		s.zeros += value == 0;
		s.nans += isnan(value) != 0;
		s.infinities += isinf(value) != 0;
		if (!isfinite(value))
			continue;
		s.least = value >= s.least ? s.least : value;
		s.most = value <= s.most ? s.most : value;
	}
	return s;
}

static const char *use_name(uint32_t use)
{
	static const char *const names[] = { "?",
		                             "experts",
		                             "router",
		                             "shared, not read",
		                             "beyond the layers, not read",
		                             "other, not read" };

	return use < sizeof(names) / sizeof(names[0]) ? names[use] : names[0];
}

static void shape_text(const struct moek_tensor *tensor, char *to, size_t room)
{
	size_t used = (size_t)snprintf(to, room, "[");

	for (uint32_t i = 0; i < tensor->rank && used < room; i++)
		used += (size_t)snprintf(to + used, room - used, "%s%llu",
		                         i == 0 ? "" : ",",
		                         (unsigned long long)tensor->shape[i]);
	if (used < room)
		snprintf(to + used, room - used, "]");
}

static void print_tensor(const char *name, int width, const struct moek_tensor *tensor,
                         uint32_t use, const struct statistics *s)
{
	char shape[128];

	shape_text(tensor, shape, sizeof(shape));
	printf("%-*s %-8s %-18s ", width, name, tensor->dtype, shape);
	if (s->known && !isnan(s->least))
		printf("%11.4g %11.4g", s->least, s->most);
	else
		printf("%11s %11s", "", "");
	printf(" %9llu  %s", (unsigned long long)s->zeros, use_name(use));
	if (s->nans != 0 || s->infinities != 0)
		printf("; %llu NaN, %llu infinite", (unsigned long long)s->nans,
		       (unsigned long long)s->infinities);
	putchar('\n');
}

static void write_tensor(struct writer *writer, const char *name,
                         const struct moek_tensor *tensor, uint32_t use,
                         const struct statistics *s)
{
	writer_open(writer, NULL, '{');
	writer_string(writer, "name", name);
	writer_string(writer, "file", tensor->file);
	writer_string(writer, "dtype", tensor->dtype);
	writer_open(writer, "shape", '[');
	for (uint32_t i = 0; i < tensor->rank; i++)
		writer_number(writer, NULL, tensor->shape[i]);
	writer_close(writer, ']');
	writer_number(writer, "bytes", tensor->bytes);
	writer_string(writer, "use", use_name(use));
	writer_real(writer, "min", s->known ? s->least : NAN);
	writer_real(writer, "max", s->known ? s->most : NAN);
	writer_number(writer, "zeros", s->zeros);
	writer_number(writer, "nan", s->nans);
	writer_number(writer, "infinite", s->infinities);
	writer_close(writer, '}');
}

static int width_of(const struct moek_checkpoint *checkpoint)
{
	size_t most = 4;

	for (uint64_t i = 0; i < moek_checkpoint_tensors(checkpoint); i++) {
		struct moek_tensor tensor;
		uint32_t use;
		const char *name = moek_checkpoint_tensor_at(checkpoint, i, &tensor,
		                                             &use);
		size_t length = name != NULL ? strlen(name) : 0;

		most = length > most ? length : most;
	}
	return most < 72 ? (int)most : 72;
}

/** One line that is written over and over, while somebody looks. */
static void show_progress(uint64_t done, uint64_t all)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\rmoek: %llu of %llu tensors%s",
		        (unsigned long long)done, (unsigned long long)all,
		        done == all ? "\r\033[K" : "");
}

void list_tensors(const struct options *options,
                  const struct moek_checkpoint *checkpoint, struct writer *writer)
{
	uint64_t all = moek_checkpoint_tensors(checkpoint);
	int width = width_of(checkpoint);

	if (options->json)
		writer_open(writer, "tensors", '[');
	else
		printf("\n%-*s %-8s %-18s %11s %11s %9s  %s\n", width, "tensor",
		       "dtype", "shape", "min", "max", "zeros", "use");
	for (uint64_t i = 0; i < all; i++) {
		struct moek_tensor tensor;
		uint32_t use;
		const char *name = moek_checkpoint_tensor_at(checkpoint, i, &tensor,
		                                             &use);
		struct statistics s;

		show_progress(i + 1, all);
		if (name == NULL)
			continue;
		s = statistics_of(&tensor);
		if (options->json)
			write_tensor(writer, name, &tensor, use, &s);
		else
			print_tensor(name, width, &tensor, use, &s);
	}
	if (options->json)
		writer_close(writer, ']');
}
