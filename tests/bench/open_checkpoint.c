/* SPDX-License-Identifier: MIT */
/*
 * How long a large checkpoint takes to open: 61,440 tensors of int4 experts in 16
 * shards, written as sparse files (under 10 MB on disk), then opened again and again.
 *
 *     open_checkpoint [FOLDER]    an existing one in place of the made one
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <moek/moek.h>

enum { LAYERS = 40, EXPERTS = 128, HIDDEN = 2048, INTERMEDIATE = 768, SHARDS = 16 };
enum { REPEATS = 11 };

/** A shard in the making: the data is never written, only counted. */
struct shard {
	FILE *file;
	char *header;
	size_t header_bytes;
	unsigned long long data_bytes;
};

static FILE *map;
static char folder[] = "/tmp/moek-open-XXXXXX";

static void die(const char *what)
{
	fprintf(stderr, "open_checkpoint: %s: %s\n", what, strerror(errno));
	exit(1);
}

static FILE *create(const char *name)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "wb");
	if (file == NULL)
		die(path);
	return file;
}

static void shard_name(char name[64], int shard)
{
	snprintf(name, 64, "model-%05d-of-%05d.safetensors", shard + 1, SHARDS);
}

static void add(struct shard *shards, int shard, const char *name, const char *dtype,
                const char *shape, unsigned long long bytes)
{
	struct shard *s = &shards[shard];
	char file[64];

	fprintf(s->file,
	        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%"
	        "llu]}",
	        s->data_bytes == 0 ? "{" : ",", name, dtype, shape, s->data_bytes,
	        s->data_bytes + bytes);
	s->data_bytes += bytes;
	shard_name(file, shard);
	fprintf(map, "%s\n\"%s\":\"%s\"", ftell(map) < 32 ? "" : ",", name, file);
}

static void add_matrix(struct shard *shards, int shard, int layer, int expert, int part)
{
	static const char *const modules[3] = { "gate_proj", "up_proj", "down_proj" };
	unsigned rows = part == 2 ? HIDDEN : INTERMEDIATE;
	unsigned columns = part == 2 ? INTERMEDIATE : HIDDEN;
	char name[128];
	int length = snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%d.%s",
	                      layer, expert, modules[part]);

	const struct {
		const char *suffix, *dtype;
		unsigned rows, columns, scalar;
	} tensors[] = {
		{ ".weight_packed", "I32", rows, columns / 8, 4 },
		{ ".weight_scale", "BF16", rows, columns / 32, 2 },
		{ ".weight_zero_point", "I32", rows / 8, columns / 32, 4 },
	};

	for (int i = 0; i < 3; i++) {
		char shape[32];

		strcpy(name + length, tensors[i].suffix);
		snprintf(shape, sizeof(shape), "%u,%u", tensors[i].rows,
		         tensors[i].columns);
		add(shards, shard, name, tensors[i].dtype, shape,
		    (unsigned long long)tensors[i].rows * tensors[i].columns *
		            tensors[i].scalar);
	}
	strcpy(name + length, ".weight_shape");
	add(shards, shard, name, "I64", "2", 16);
}

static void end_shard(struct shard *s, int number)
{
	unsigned long long length;
	char name[64];
	FILE *file;

	fputc('}', s->file);
	fclose(s->file);
	length = s->header_bytes;
	shard_name(name, number);
	file = create(name);
	fwrite(&length, 1, 8, file);
	fwrite(s->header, 1, s->header_bytes, file);
	fflush(file);
	if (ftruncate(fileno(file), (off_t)(8 + length + s->data_bytes)) != 0)
		die(name);
	fclose(file);
	free(s->header);
}

static void make(void)
{
	struct shard shards[SHARDS] = { { 0 } };
	FILE *config;

	if (mkdtemp(folder) == NULL)
		die(folder);
	config = create("config.json");
	fprintf(config,
	        "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":%d,"
	        "\"num_experts\":%d,\"num_experts_per_tok\":8,\"hidden_size\":%d,"
	        "\"moe_intermediate_size\":%d,\"norm_topk_prob\":true,"
	        "\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\","
	        "\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
	        "\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":"
	        "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":"
	        "\"int\","
	        "\"strategy\":\"group\",\"group_size\":32,\"symmetric\":false}}}}}",
	        LAYERS, EXPERTS, HIDDEN, INTERMEDIATE);
	fclose(config);
	map = create("model.safetensors.index.json");
	fputs("{\"weight_map\":{", map);
	for (int i = 0; i < SHARDS; i++)
		shards[i].file = open_memstream(&shards[i].header,
		                                &shards[i].header_bytes);
	for (int l = 0; l < LAYERS; l++) {
		int shard = l * SHARDS / LAYERS;
		char name[64];

		snprintf(name, sizeof(name), "model.layers.%d.mlp.gate.weight", l);
		add(shards, shard, name, "BF16", "128,2048", 2ull * EXPERTS * HIDDEN);
		for (int e = 0; e < EXPERTS; e++)
			for (int part = 0; part < 3; part++)
				add_matrix(shards, shard, l, e, part);
	}
	fputs("}}", map);
	fclose(map);
	for (int i = 0; i < SHARDS; i++)
		end_shard(&shards[i], i);
}

static void clean(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	if (system(command) != 0)
		die(command);
}

static double now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void time_opening(const char *path)
{
	double wall[REPEATS], cpu[REPEATS];
	unsigned long long tensors = 0;

	for (int i = 0; i < REPEATS; i++) {
		struct moek_checkpoint *checkpoint = NULL;
		struct moek_error error = { .text = "" };
		double start = now(CLOCK_MONOTONIC);
		double cpu_start = now(CLOCK_PROCESS_CPUTIME_ID);

		if (moek_checkpoint_open(NULL, path, &checkpoint, &error) != MOEK_OK) {
			fprintf(stderr, "%s\n", error.text);
			exit(1);
		}
		tensors = moek_checkpoint_tensors(checkpoint);
		moek_checkpoint_close(checkpoint);
		wall[i] = now(CLOCK_MONOTONIC) - start;
		cpu[i] = now(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
	}
	qsort(wall, REPEATS, sizeof(wall[0]), compare);
	qsort(cpu, REPEATS, sizeof(cpu[0]), compare);
	printf("%s: %llu tensors: open and close %.3f s (median of %d; least %.3f, CPU "
	       "%.3f)\n",
	       path, tensors, wall[REPEATS / 2], REPEATS, wall[0], cpu[REPEATS / 2]);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		time_opening(argv[1]);
		return 0;
	}
	make();
	time_opening(folder);
	clean();
	return 0;
}
