/* SPDX-License-Identifier: MIT */
/* moek place: a placement of experts on ranks, balanced by a trace of the routing. */
#include "config.h"

#include "tools/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** One layer dealt out. */
struct deal {
	struct moek_layer_info info;
	uint64_t experts, ranks, expert_bytes;
	uint8_t *placement; /* [ranks][experts] */
	double *loads;      /* [experts] */
	double *shares;     /* [ranks] */
};

static void end_deal(struct deal *deal)
{
	free(deal->placement);
	free(deal->loads);
	free(deal->shares);
}

/* ---- the trace ---- */

static int32_t count_ids(const struct moek_tensor *tensor, struct deal *deal,
                         const char *path, struct moek_error *error_out)
{
	uint64_t count = tensor->bytes / sizeof(int32_t);

	for (uint64_t i = 0; i < count; i++) {
		int32_t id;

		memcpy(&id, (const char *)tensor->data + i * sizeof(id), sizeof(id));
		if (id < 0 || (uint64_t)id >= deal->experts)
			return tool_error(
				error_out, MOEK_BAD_FILE,
				"%s: %s.topk_ids has %d, there are %llu experts", path,
				deal->info.name, (int)id,
				(unsigned long long)deal->experts);
		deal->loads[id]++;
	}
	return MOEK_OK;
}

static int32_t read_trace(struct moek_safetensors *trace, const char *path,
                          struct deal *deal, struct moek_error *error_out)
{
	struct moek_tensor tensor = { .struct_size = MOEK_INIT(TENSOR) };
	char name[96];
	int32_t status;

	snprintf(name, sizeof(name), "%s.topk_ids", deal->info.name);
	status = moek_safetensors_tensor(trace, name, &tensor, error_out);
	if (status != MOEK_OK)
		return status;
	if (tensor.type != MOEK_I32 && strcmp(tensor.dtype, "I32") != 0)
		return tool_error(error_out, MOEK_BAD_FILE, "%s: %s is %s, must be I32",
		                  path, name, tensor.dtype);
	return count_ids(&tensor, deal, path, error_out);
}

/* ---- one layer ---- */

static int32_t deal_layer(const struct options *options, const struct session *session,
                          uint64_t index, struct moek_safetensors *trace,
                          struct deal *deal, struct moek_error *error_out)
{
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_placing placing = { .struct_size = MOEK_INIT(PLACING) };
	int32_t status = MOEK_OK;

	moek_checkpoint_problem(session->checkpoint, index, &problem);
	deal->experts = problem.experts;
	deal->ranks = options->ranks_wanted;
	deal->expert_bytes = deal->info.read_bytes / problem.experts;
	deal->placement = calloc(deal->ranks, deal->experts);
	deal->loads = calloc(deal->experts, sizeof(*deal->loads));
	deal->shares = calloc(deal->ranks, sizeof(*deal->shares));
	if (deal->placement == NULL || deal->loads == NULL || deal->shares == NULL)
		return tool_error(error_out, MOEK_NO_MEMORY,
		                  "no memory for a placement on %llu ranks",
		                  (unsigned long long)deal->ranks);
	if (trace != NULL)
		status = read_trace(trace, options->trace, deal, error_out);
	if (status != MOEK_OK)
		return status;
	placing.experts = deal->experts;
	placing.ranks = deal->ranks;
	placing.most = options->most;
	placing.loads = trace != NULL ? deal->loads : NULL;
	return moek_place(&placing, deal->placement, deal->shares, error_out);
}

static uint64_t held(const struct deal *deal, uint64_t rank)
{
	uint64_t count = 0;

	for (uint64_t e = 0; e < deal->experts; e++)
		count += deal->placement[rank * deal->experts + e];
	return count;
}

/** How many experts adjoin @first, itself included. */
static uint64_t run_length(const uint8_t *holds, uint64_t first, uint64_t experts)
{
	uint64_t last = first;

	while (last < experts && holds[last])
		last++;
	return last - first;
}

/** "0-7,12", as --experts takes it. */
static void print_experts(const uint8_t *holds, uint64_t experts)
{
	const char *comma = "";

	for (uint64_t e = 0; e < experts; e++) {
		uint64_t length = run_length(holds, e, experts);

		if (length == 0)
			continue;
		printf("%s%llu", comma, (unsigned long long)e);
		if (length > 1)
			printf("-%llu", (unsigned long long)(e + length - 1));
		comma = ",";
		e += length;
	}
}

static void print_deal(const struct deal *deal)
{
	for (uint64_t r = 0; r < deal->ranks; r++) {
		uint64_t count = held(deal, r);

		printf("%-10s  %5llu  %7llu  %8.2f  %5.1f%%  ", deal->info.name,
		       (unsigned long long)r, (unsigned long long)count,
		       (double)(count * deal->expert_bytes) / 1048576,
		       100 * deal->shares[r]);
		print_experts(deal->placement + r * deal->experts, deal->experts);
		putchar('\n');
	}
}

static void write_deal(struct writer *writer, const struct deal *deal)
{
	writer_open(writer, NULL, '{');
	writer_string(writer, "name", deal->info.name);
	writer_open(writer, "ranks", '[');
	for (uint64_t r = 0; r < deal->ranks; r++) {
		writer_open(writer, NULL, '{');
		writer_number(writer, "rank", r);
		writer_number(writer, "weight_bytes",
		              held(deal, r) * deal->expert_bytes);
		writer_real(writer, "load", deal->shares[r]);
		writer_open(writer, "experts", '[');
		for (uint64_t e = 0; e < deal->experts; e++)
			if (deal->placement[r * deal->experts + e])
				writer_number(writer, NULL, e);
		writer_close(writer, ']');
		writer_close(writer, '}');
	}
	writer_close(writer, ']');
	writer_close(writer, '}');
}

/* ---- all layers ---- */

/** Deal out each wanted layer and hand it to @take. */
static int32_t each_layer(const struct options *options, const struct session *session,
                          void (*take)(void *self, const struct deal *deal), void *self,
                          struct moek_error *error_out)
{
	struct moek_safetensors *trace = NULL;
	uint64_t count = moek_checkpoint_layers(session->checkpoint);
	int32_t status = MOEK_OK;

	if (options->trace != NULL)
		status = moek_safetensors_open(options->trace, &trace, error_out);
	for (uint64_t i = 0; status == MOEK_OK && i < count; i++) {
		struct deal deal = { .info.struct_size = MOEK_INIT(LAYER_INFO) };

		if (moek_checkpoint_layer(session->checkpoint, i, &deal.info) !=
		            MOEK_OK ||
		    !tool_wants_layer(options, deal.info.number))
			continue;
		status = deal_layer(options, session, i, trace, &deal, error_out);
		if (status == MOEK_OK)
			take(self, &deal);
		end_deal(&deal);
	}
	moek_safetensors_close(trace);
	return status;
}

struct listing {
	struct writer *writer; /* NULL: text */
	double slowest;        /* most of a rank's load over the mean, of all layers */
	char layer[64];
};

static void list_deal(void *self, const struct deal *deal)
{
	struct listing *listing = self;

	for (uint64_t r = 0; r < deal->ranks; r++)
		if (deal->shares[r] * (double)deal->ranks > listing->slowest) {
			listing->slowest = deal->shares[r] * (double)deal->ranks;
			snprintf(listing->layer, sizeof(listing->layer), "%s",
			         deal->info.name);
		}
	if (listing->writer != NULL)
		write_deal(listing->writer, deal);
	else
		print_deal(deal);
}

struct sums {
	uint64_t *experts, *bytes; /* [ranks] */
	double *shares;            /* [ranks] */
	uint64_t layers;
};

static void add_deal(void *self, const struct deal *deal)
{
	struct sums *sums = self;

	sums->layers++;
	for (uint64_t r = 0; r < deal->ranks; r++) {
		uint64_t count = held(deal, r);

		sums->experts[r] += count;
		sums->bytes[r] += count * deal->expert_bytes;
		sums->shares[r] += deal->shares[r];
	}
}

static void print_sums(const struct options *options, const struct sums *sums)
{
	puts("\n rank  experts       MiB    load");
	for (uint64_t r = 0; r < options->ranks_wanted; r++)
		printf("%5llu  %7llu  %8.2f  %5.1f%%\n", (unsigned long long)r,
		       (unsigned long long)sums->experts[r],
		       (double)sums->bytes[r] / 1048576,
		       100 * sums->shares[r] / (double)sums->layers);
}

static void write_sums(struct writer *writer, const struct options *options,
                       const struct sums *sums)
{
	writer_open(writer, "ranks", '[');
	for (uint64_t r = 0; r < options->ranks_wanted; r++) {
		writer_open(writer, NULL, '{');
		writer_number(writer, "rank", r);
		writer_number(writer, "experts", sums->experts[r]);
		writer_number(writer, "weight_bytes", sums->bytes[r]);
		writer_real(writer, "load", sums->shares[r] / (double)sums->layers);
		writer_close(writer, '}');
	}
	writer_close(writer, ']');
}

int32_t place_summary(const struct options *options, const struct session *session,
                      struct writer *writer, struct moek_error *error_out)
{
	uint64_t ranks = options->ranks_wanted;
	struct sums sums = {
		.experts = calloc(ranks, sizeof(*sums.experts)),
		.bytes = calloc(ranks, sizeof(*sums.bytes)),
		.shares = calloc(ranks, sizeof(*sums.shares)),
	};
	int32_t status;

	if (sums.experts == NULL || sums.bytes == NULL || sums.shares == NULL)
		status = tool_error(error_out, MOEK_NO_MEMORY, "no memory for ranks");
	else
		status = each_layer(options, session, add_deal, &sums, error_out);
	if (status == MOEK_OK && writer != NULL)
		write_sums(writer, options, &sums);
	else if (status == MOEK_OK)
		print_sums(options, &sums);
	free(sums.experts);
	free(sums.bytes);
	free(sums.shares);
	return status;
}

static int place(const struct options *options, const struct session *session)
{
	struct writer writer = { 0 };
	struct listing listing = { .writer = options->json ? &writer : NULL };
	struct moek_error error;
	int32_t status;

	if (options->json) {
		writer_open(&writer, NULL, '{');
		writer_string(&writer, "checkpoint", options->checkpoint);
		writer_open(&writer, "layers", '[');
	} else {
		puts("layer        rank  experts       MiB    load  which");
	}
	status = each_layer(options, session, list_deal, &listing, &error);
	if (options->json) {
		writer_close(&writer, ']');
		writer_real(&writer, "slowest", listing.slowest);
		writer_close(&writer, '}');
	} else if (status == MOEK_OK) {
		printf("\nthe most loaded rank gets %.2f times the mean (%s)\n",
		       listing.slowest, listing.layer);
	}
	fflush(stdout);
	return status == MOEK_OK ? TOOL_DONE : tool_fail(&error);
}

int command_place(const struct options *options)
{
	struct session session;
	struct moek_error error;
	int code;

	if (options->ranks_wanted == 0 ||
	    (options->most != 0 && options->trace == NULL)) {
		tool_say("place: needs --ranks, and --trace with --most");
		return TOOL_USAGE;
	}
	if (tool_open(options, &session, &error) != MOEK_OK)
		return tool_fail(&error);
	code = place(options, &session);
	tool_close(&session);
	return code;
}
