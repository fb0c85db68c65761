/* SPDX-License-Identifier: MIT */
/* moek bench load: how fast a checkpoint's experts are decoded and prepared. */
#include "config.h"

#include "tools/numbers.h"
#include "tools/rig.h"

#include <stdio.h>
#include <unistd.h>

#define REPETITIONS 5
#define MOST_REPETITIONS 1000
#define TOKENS 1024

struct load {
	const struct options *options;
	struct rig rig;
	struct moek_checkpoint *checkpoint;
	char backend[96]; /* of the first layer */
	uint64_t layers, bytes;
	uint64_t repetitions;
	double seconds[MOST_LIST][MOST_REPETITIONS],
		shares[MOST_LIST][MOST_REPETITIONS];
};

static int32_t load_layer(struct load *load, uint64_t index,
                          const struct moek_layer_info *info, double *seconds,
                          struct moek_error *error_out)
{
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_source source = { .struct_size = MOEK_INIT(SOURCE) };
	struct moek_choice *choice = NULL;
	struct moek_layer *layer = NULL;
	double start;
	int32_t status;

	moek_checkpoint_problem(load->checkpoint, index, &problem);
	problem.max_tokens = TOKENS;
	status = moek_choose(load->rig.registry, &problem, load->options->backend,
	                     info->name, &choice, error_out);
	if (status == MOEK_OK)
		status = moek_checkpoint_source(load->checkpoint, index, &source,
		                                error_out);
	start = seconds_now();
	if (status == MOEK_OK)
		status = moek_layer_create(choice, &source, NULL, &layer, error_out);
	*seconds += seconds_now() - start;
	if (status == MOEK_OK && load->layers == 0)
		snprintf(load->backend, sizeof(load->backend), "%s",
		         moek_choice_winner(moek_layer_choice(layer)));
	moek_layer_destroy(layer);
	moek_source_close(&source);
	moek_choice_destroy(choice);
	return status;
}

/** All layers that are wanted, one after the other. */
static int32_t load_layers(struct load *load, double *seconds,
                           struct moek_error *error_out)
{
	struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
	uint64_t count = moek_checkpoint_layers(load->checkpoint);
	uint64_t layers = 0;
	int32_t status = MOEK_OK;

	load->bytes = 0;
	*seconds = 0;
	for (uint64_t i = 0; status == MOEK_OK && i < count; i++) {
		if (moek_checkpoint_layer(load->checkpoint, i, &info) != MOEK_OK ||
		    !tool_wants_layer(load->options, info.number))
			continue;
		if (isatty(STDERR_FILENO))
			fprintf(stderr, "\r%s\033[K", info.name);
		status = load_layer(load, i, &info, seconds, error_out);
		load->bytes += info.weight_bytes;
		layers++;
	}
	load->layers = layers;
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	return status;
}

static int32_t run_load(struct load *load, struct moek_error *error_out)
{
	double seconds;
	int32_t status = load_layers(load, &seconds, error_out);

	for (uint64_t r = 0; r < load->repetitions; r++)
		for (uint64_t i = 0; status == MOEK_OK && i < load->rig.pool_count;
		     i++) {
			struct probe *probe = &load->rig.probes[i];
			double read;

			rig_use(&load->rig, i);
			probe_wait(probe);
			read = probe_read(probe, &load->rig.memory);
			status = load_layers(load, &seconds, error_out);
			load->seconds[i][r] = seconds;
			load->shares[i][r] = (double)load->bytes / seconds / 1e9 / read;
		}
	return status;
}

static void print_load(struct load *load)
{
	rig_print(&load->rig);
	printf("%s: %llu layers, %.3f GB of expert weights, for %s\n\n",
	       load->options->checkpoint, (unsigned long long)load->layers,
	       (double)load->bytes / 1e9, load->backend);
	printf("%7s %10s %6s %8s %12s %13s\n", "threads", "ms", "spread", "GB/s",
	       "GB/s/thread", "share of read");
	for (uint64_t i = 0; i < load->rig.pool_count; i++) {
		double threads = load->rig.probes[i].workers->count;
		double spread = quartile_spread(load->seconds[i], load->repetitions);
		double seconds = median(load->seconds[i], load->repetitions);
		double rate = (double)load->bytes / seconds / 1e9;

		printf("%7.0f %10.4g %5.0f%% %8.3f %12.3f %13.3f\n", threads,
		       seconds * 1e3, 100 * spread, rate, rate / threads,
		       median(load->shares[i], load->repetitions));
	}
}

static void write_load(struct load *load)
{
	struct writer writer = { 0 };

	writer_open(&writer, NULL, '{');
	rig_write(&writer, &load->rig);
	writer_open(&writer, "results", '[');
	for (uint64_t i = 0; i < load->rig.pool_count; i++) {
		double spread = quartile_spread(load->seconds[i], load->repetitions);
		double seconds = median(load->seconds[i], load->repetitions);

		writer_open(&writer, NULL, '{');
		writer_string(&writer, "backend", load->backend);
		writer_number(&writer, "layers", load->layers);
		writer_number(&writer, "bytes", load->bytes);
		writer_number(&writer, "threads", load->rig.probes[i].workers->count);
		writer_real(&writer, "ms", seconds * 1e3);
		writer_real(&writer, "spread", spread);
		writer_real(&writer, "gb_per_second",
		            (double)load->bytes / seconds / 1e9);
		writer_real(&writer, "share_of_limit",
		            median(load->shares[i], load->repetitions));
		writer_string(&writer, "limit", limit_names[LIMIT_READ]);
		writer_close(&writer, '}');
	}
	writer_close(&writer, ']');
	writer_close(&writer, '}');
}

int command_bench_load(const struct options *options)
{
	static struct load load;
	struct moek_error error;
	int32_t status;

	load.options = options;
	load.repetitions = options->repetitions > 0 ? options->repetitions
	                                            : REPETITIONS;
	status = rig_open(options, &load.rig, &error);
	if (status == MOEK_OK)
		status = tool_open_checkpoint(options, load.rig.registry,
		                              &load.checkpoint, &error);
	if (status == MOEK_OK)
		status = run_load(&load, &error);
	if (status == MOEK_OK && options->json)
		write_load(&load);
	else if (status == MOEK_OK)
		print_load(&load);
	moek_checkpoint_close(load.checkpoint);
	rig_close(&load.rig);
	return status == MOEK_OK ? TOOL_DONE : tool_fail(&error);
}
