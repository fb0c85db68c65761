/* SPDX-License-Identifier: MIT */
/* A layer over ranks: who holds what, this rank's part, buffers. */
#include "config.h"

#include "parallel/ep.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/workspace.h"

#define DEFAULT_SLOTS 16384u /* in flight on all ranks */
#define LEAST_CHUNK 16u

/* ---- arguments ---- */

static int32_t bad(struct moek_error *error_out, const char *text)
{
	return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
	               "parallel layer: %s", text);
}

static int32_t check_placement(int groups, uint64_t experts, const uint8_t *placement,
                               struct moek_error *error_out)
{
	for (uint64_t e = 0; e < experts; e++) {
		int holders = 0;

		for (uint64_t r = 0; r < (uint64_t)groups; r++) {
			uint8_t holds = placement[r * experts + e];

			if (holds > 1)
				return ep_fail(error_out, MOEK_BAD_ARGUMENT,
				               MOEK_RULE_EXPERT_MAP,
				               "placement: rank %llu, expert %llu: %u, "
				               "must be 0 or 1",
				               (unsigned long long)r,
				               (unsigned long long)e, holds);
			holders += holds;
		}
		if (holders == 0)
			return ep_fail(error_out, MOEK_BAD_ARGUMENT,
			               MOEK_RULE_EXPERT_MAP,
			               "placement: no rank holds expert %llu",
			               (unsigned long long)e);
	}
	return MOEK_OK;
}

static int32_t check_options(const struct moek_ep_layer_options *options,
                             struct moek_problem *problem_out,
                             struct moek_error *error_out)
{
	struct moek_problem *p = problem_out;
	int32_t status;

	if (options == NULL || options->struct_size < MOEK_EP_LAYER_OPTIONS_SIZE_1_0 ||
	    options->problem == NULL)
		return bad(error_out, "no options, a short struct_size, or no problem");
	if (options->combine > MOEK_COMBINE_RANKS)
		return bad(error_out, "combine is not one of enum moek_combine");
	if (options->wire > MOEK_WIRE_FP8)
		return bad(error_out, "wire is not one of enum moek_wire");
	if (options->reserved != 0)
		return bad(error_out, "reserved is not 0");
	*p = *options->problem;
	status = moek_problem_check(p, error_out);
	if (status != MOEK_OK)
		return status;
	if (p->experts_local != p->experts ||
	    (p->must_understand & MOEK_EXPERT_MAP) != 0)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
		               "parallel layer: the problem must be the whole layer's, "
		               "without an expert map");
	if (options->wire == MOEK_WIRE_FP8 && p->input_type == MOEK_F16)
		return ep_fail(
			error_out, MOEK_REFUSED, MOEK_RULE_INPUT_TYPE,
			"parallel layer: fp8 on the wire from fp16, must be from "
			"bf16 or fp32");
	if (p->max_tokens == 0)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_TOKENS,
		               "parallel layer: max_tokens is 0");
	return MOEK_OK;
}

/* ---- who holds what ---- */

/** Ranks 0 to shards - 1 are group 0, and so on. */
static int32_t find_group(struct moek_ep_layer *layer, struct moek_error *error_out)
{
	const struct moek_ep *ep = layer->ep;
	uint32_t shards = layer->problem.shards > 1 ? layer->problem.shards : 1;

	if (shards > (uint32_t)ep->ranks || (uint32_t)ep->ranks % shards != 0)
		return ep_fail(
			error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_SHARDS,
			"parallel layer: %u tensor shards do not divide %d ranks",
			shards, ep->ranks);
	if (shards > 1 && layer->problem.shard != (uint32_t)ep->rank % shards)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_SHARDS,
		               "parallel layer: the problem is of shard %u, must be of "
		               "shard %u",
		               layer->problem.shard, (uint32_t)ep->rank % shards);
	layer->shards = (int)shards;
	layer->group = ep->rank / layer->shards;
	layer->groups = ep->ranks / layer->shards;
	return MOEK_OK;
}

static int32_t list_owners(struct moek_ep_layer *layer, const uint8_t *placement,
                           struct moek_error *error_out)
{
	uint64_t experts = layer->problem.experts, count = 0;
	int overflow = 0;
	uint64_t most = moek_size_multiply(experts, (uint64_t)layer->groups, &overflow);

	moek_size_multiply(most, sizeof(*layer->owners), &overflow);
	layer->owner_starts = calloc(experts + 1, sizeof(*layer->owner_starts));
	layer->map = malloc(experts * sizeof(*layer->map));
	layer->owners = overflow ? NULL : malloc(most * sizeof(*layer->owners));
	if (layer->owner_starts == NULL || layer->owners == NULL || layer->map == NULL)
		return ep_fail_memory(error_out, "the placement of experts");
	layer->local_problem.experts_local = 0;
	for (uint64_t e = 0; e < experts; e++) {
		layer->owner_starts[e] = count;
		for (int r = 0; r < layer->groups; r++)
			if (placement[(uint64_t)r * experts + e])
				layer->owners[count++] = r;
		layer->map[e] = -1;
		if (placement[(uint64_t)layer->group * experts + e])
			layer->map[e] = (int32_t)layer->local_problem.experts_local++;
	}
	layer->owner_starts[experts] = count;
	return MOEK_OK;
}

/** With the host's placement, or adjacent experts together. */
static int32_t place(struct moek_ep_layer *layer, const uint8_t *placement,
                     struct moek_error *error_out)
{
	const struct moek_placing placing = {
		.struct_size = MOEK_INIT(PLACING),
		.experts = layer->problem.experts,
		.ranks = (uint64_t)layer->groups,
	};
	uint8_t *mine;
	int32_t status;

	if (placement != NULL) {
		status = check_placement(layer->groups, placing.experts, placement,
		                         error_out);
		return status != MOEK_OK ? status
		                         : list_owners(layer, placement, error_out);
	}
	mine = calloc(placing.experts, placing.ranks);
	if (mine == NULL)
		return ep_fail_memory(error_out, "the placement of experts");
	status = moek_place(&placing, mine, NULL, error_out);
	if (status == MOEK_OK)
		status = list_owners(layer, mine, error_out);
	free(mine);
	return status;
}

/* ---- sizes ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t element_bytes(uint32_t type)
{
	return type == MOEK_F32 ? 4 : 2;
}

static void choose_chunk(struct moek_ep_layer *layer, uint64_t chunk)
{
	const struct moek_problem *p = &layer->problem;
	uint64_t each = DEFAULT_SLOTS / (uint64_t)layer->ep->ranks / p->top_k;

	if (chunk == 0)
		chunk = each > LEAST_CHUNK ? each : LEAST_CHUNK;
	layer->chunk = least(chunk, p->max_tokens);
	layer->most_rounds = (p->max_tokens - 1) / layer->chunk + 1;
	layer->fan_out = least(p->top_k, (uint64_t)layer->groups) *
	                 (uint64_t)layer->shards;
}

/** Records and results, and that MPI can count them. */
static int32_t plan_rows(struct moek_ep_layer *layer, struct moek_error *error_out)
{
	const struct moek_problem *p = &layer->problem;
	int overflow = 0;
	uint64_t slots = moek_size_multiply(
		moek_size_multiply(layer->chunk, (uint64_t)layer->ep->ranks, &overflow),
		p->top_k * (uint64_t)layer->shards, &overflow);
	uint64_t table = moek_size_multiply(layer->most_rounds + 1,
	                                    (uint64_t)layer->ep->ranks, &overflow);
	uint32_t type = layer->combine == MOEK_COMBINE_SLOTS ? MOEK_F32
	                                                     : p->output_type;

	/* moek_problem_check has bounded hidden, and top_k for max_tokens */
	layer->row_bytes = wire_row_bytes(layer);
	layer->with_weights = layer->combine == MOEK_COMBINE_RANKS ||
	                      (p->must_understand & MOEK_WEIGHT_ON_INPUT) != 0;
	layer->record_bytes = layer->row_bytes +
	                      p->top_k * (layer->with_weights ? 8 : 4);
	layer->result_bytes = p->hidden * element_bytes(type);
	if (overflow || slots > INT_MAX || table > INT_MAX ||
	    layer->record_bytes > INT_MAX || layer->result_bytes > INT_MAX)
		return ep_fail(
			error_out, MOEK_REFUSED, MOEK_RULE_INDEX_RANGE,
			"parallel layer: %llu tokens of each rank at once are more "
			"than MPI can count; set chunk_tokens",
			(unsigned long long)layer->chunk);
	layer->counts_out = calloc(table, sizeof(int));
	layer->counts_in = calloc(table, sizeof(int));
	if (layer->counts_out == NULL || layer->counts_in == NULL)
		return ep_fail_memory(error_out, "counts of rows");
	return MOEK_OK;
}

/** What this rank's backend is asked: slots one by one, or sums of its own experts. */
static void plan_local(struct moek_ep_layer *layer)
{
	struct moek_problem *p = &layer->local_problem;
	uint64_t local = p->experts_local;

	*p = layer->problem;
	p->experts_local = local;
	p->must_understand |= MOEK_EXPERT_MAP;
	p->must_understand &= ~MOEK_ROW_STRIDE;
	p->max_tokens = layer->chunk * (uint64_t)layer->ep->ranks;
	if (layer->combine == MOEK_COMBINE_RANKS)
		return;
	p->max_tokens *= p->top_k;
	p->top_k = 1;
	p->output_type = MOEK_F32;
}

/* ---- this rank's part ---- */

static int32_t make_local(struct moek_ep_layer *layer,
                          const struct moek_ep_layer_options *options,
                          const struct moek_source *source,
                          struct moek_error *error_out)
{
	const struct moek_layer_options local = {
		.struct_size = MOEK_INIT(LAYER_OPTIONS),
		.expert_map = layer->map,
		.progress = options->progress,
		.progress_self = options->progress_self,
	};
	struct moek_choice *choice = NULL;
	int32_t status;

	if (layer->local_problem.experts_local == 0)
		return MOEK_OK;
	status = moek_choose(layer->ep->registry, &layer->local_problem,
	                     options->request, options->label, &choice, error_out);
	if (status == MOEK_OK)
		status = moek_layer_create(choice, source, &local, &layer->local,
		                           error_out);
	moek_choice_destroy(choice);
	return status;
}

/** Everything that must be the same on all ranks of a shard, as lines of text. */
static int32_t same_options(struct moek_ep_layer *layer,
                            const struct moek_ep_layer_options *options,
                            struct moek_error *error_out)
{
	const struct moek_problem *p = &layer->problem;
	int32_t status = MOEK_OK;
	uint64_t experts = p->experts, places = layer->owner_starts[experts];
	uint64_t placement = ep_hash(EP_HASH, layer->owner_starts,
	                             (experts + 1) * sizeof(*layer->owner_starts));
	char text[1024];

	placement = ep_hash(placement, layer->owners, places * sizeof(*layer->owners));
	snprintf(text, sizeof(text),
	         "experts %llu\ntop_k %llu\nhidden %llu\nintermediate %llu\n"
	         "max_tokens %llu\ninput_type %s\noutput_type %s\n"
	         "problem %016llx\nplacement %016llx\ncombine %u\nwire %u\n"
	         "chunk_tokens %llu\n",
	         (unsigned long long)experts, (unsigned long long)p->top_k,
	         (unsigned long long)p->hidden, (unsigned long long)p->intermediate,
	         (unsigned long long)p->max_tokens, moek_type_name(p->input_type),
	         moek_type_name(p->output_type),
	         (unsigned long long)ep_hash(EP_HASH, p, MOEK_PROBLEM_SIZE_1_0),
	         (unsigned long long)placement, options->combine, options->wire,
	         (unsigned long long)layer->chunk);
	/* shards need not be equally wide */
	for (int i = 0; status == MOEK_OK && i < layer->shards; i++)
		status = ep_same(layer->ep, MOEK_BAD_ARGUMENT, "layer",
		                 layer->ep->rank % layer->shards == i ? text : "",
		                 error_out);
	return status;
}

/** All ranks divide experts alike: what follows is one message for each shard. */
static int32_t same_shards(struct moek_ep_layer *layer, struct moek_error *error_out)
{
	char text[80];

	snprintf(text, sizeof(text), "shards %d\nmax_tokens %llu\nhidden %llu\n",
	         layer->shards, (unsigned long long)layer->problem.max_tokens,
	         (unsigned long long)layer->problem.hidden);
	return ep_same(layer->ep, MOEK_BAD_ARGUMENT, "layer", text, error_out);
}

static int32_t plan(struct moek_ep_layer *layer,
                    const struct moek_ep_layer_options *options,
                    const struct moek_source *source, struct moek_error *error_out)
{
	int32_t status = check_options(options, &layer->problem, error_out);

	if (status != MOEK_OK)
		return status;
	if (source == NULL)
		return bad(error_out, "source is NULL");
	layer->combine = options->combine;
	layer->wire = options->wire;
	status = find_group(layer, error_out);
	if (status == MOEK_OK)
		status = place(layer, options->placement, error_out);
	if (status != MOEK_OK)
		return status;
	choose_chunk(layer, options->chunk_tokens);
	status = plan_rows(layer, error_out);
	if (status == MOEK_OK)
		plan_local(layer);
	return status;
}

static const char *backend_of(const struct moek_ep_layer *layer)
{
	return layer->local != NULL
	               ? moek_choice_winner(moek_layer_choice(layer->local))
	               : "";
}

static void make_types(struct moek_ep_layer *layer)
{
	MPI_Type_contiguous((int)layer->record_bytes, MPI_BYTE, &layer->record);
	MPI_Type_commit(&layer->record);
	MPI_Type_contiguous((int)layer->result_bytes, MPI_BYTE, &layer->result);
	MPI_Type_commit(&layer->result);
}

int32_t moek_ep_layer_create(struct moek_ep *ep,
                             const struct moek_ep_layer_options *options,
                             const struct moek_source *source,
                             struct moek_ep_layer **layer_out,
                             struct moek_error *error_out)
{
	struct moek_error error = { .status = MOEK_OK };
	struct moek_ep_layer *layer = calloc(1, sizeof(*layer));
	int32_t status;

	if (layer == NULL) {
		status = ep_fail_memory(&error, "layer");
	} else {
		layer->ep = ep;
		layer->record = layer->result = MPI_DATATYPE_NULL;
		status = plan(layer, options, source, &error);
	}
	status = moek_ep_agree(ep, status, &error);
	if (status == MOEK_OK)
		status = same_shards(layer, &error);
	if (status == MOEK_OK)
		status = same_options(layer, options, &error);
	if (status != MOEK_OK)
		goto failed;
	status = moek_ep_agree(ep, make_local(layer, options, source, &error), &error);
	if (status == MOEK_OK)
		status = ep_same(ep, MOEK_REFUSED, "backend", backend_of(layer),
		                 &error);
	if (status != MOEK_OK)
		goto failed;
	make_types(layer);
	*layer_out = layer;
	return MOEK_OK;

failed:
	moek_ep_layer_destroy(layer);
	if (error_out != NULL)
		*error_out = error;
	return status;
}

void moek_ep_layer_destroy(struct moek_ep_layer *layer)
{
	if (layer == NULL)
		return;
	if (layer->record != MPI_DATATYPE_NULL)
		MPI_Type_free(&layer->record);
	if (layer->result != MPI_DATATYPE_NULL)
		MPI_Type_free(&layer->result);
	moek_layer_destroy(layer->local);
	free(layer->owner_starts);
	free(layer->owners);
	free(layer->map);
	free(layer->counts_out);
	free(layer->counts_in);
	free(layer);
}

const struct moek_layer *moek_ep_layer_local(const struct moek_ep_layer *layer)
{
	return layer->local;
}

int32_t moek_ep_layer_stats(const struct moek_ep_layer *layer,
                            struct moek_ep_stats *stats_out)
{
	if (stats_out == NULL || stats_out->struct_size < MOEK_EP_STATS_SIZE_1_0)
		return MOEK_BAD_ARGUMENT;
	*stats_out = layer->stats;
	stats_out->struct_size = MOEK_EP_STATS_SIZE_1_0;
	stats_out->wire = layer->wire;
	return MOEK_OK;
}

/* ---- buffers ---- */

/** A buffer of @count pieces of @bytes, grown to the largest layer's. */
struct need {
	void **at;
	uint64_t count, bytes;
};

static int32_t allocate(const struct need *needs, size_t count,
                        struct moek_error *error_out)
{
	for (size_t i = 0; i < count; i++) {
		int overflow = 0;
		uint64_t bytes = moek_size_multiply(needs[i].count, needs[i].bytes,
		                                    &overflow);

		/* rows start on a cache line, as backends like them */
		if (overflow || bytes > SIZE_MAX - 64 ||
		    posix_memalign(needs[i].at, 64, bytes + 64) != 0)
			return ep_fail(
				error_out, MOEK_NO_MEMORY, MOEK_RULE_MEMORY,
				"parallel workspace: out of memory for %llu rows "
				"of %llu bytes",
				(unsigned long long)needs[i].count,
				(unsigned long long)needs[i].bytes);
	}
	return MOEK_OK;
}

/** The largest of each size over all layers. */
static void widen(struct workspace_sizes *sizes, const struct moek_ep_layer *layer)
{
	const struct moek_problem *p = &layer->problem;
	uint64_t arriving = layer->chunk * (uint64_t)layer->ep->ranks;
	uint64_t slots = layer->local_problem.max_tokens;
	uint64_t back = layer->chunk * (layer->combine == MOEK_COMBINE_SLOTS
	                                        ? p->top_k * (uint64_t)layer->shards
	                                        : layer->fan_out);
	uint64_t local_ids = slots * layer->local_problem.top_k;
	const struct workspace_sizes mine = {
		.choices = p->max_tokens * p->top_k,
		.places = back,
		.out = layer->chunk * layer->fan_out * layer->record_bytes,
		.in = arriving * layer->record_bytes,
		.results_out = slots * layer->result_bytes,
		.results_in = back * layer->result_bytes,
		.local_ids = local_ids,
		.local_input = slots * p->hidden * element_bytes(p->input_type),
	};
	const uint64_t *from = (const uint64_t *)&mine;
	uint64_t *to = (uint64_t *)sizes;

	for (size_t i = 0; i < sizeof(mine) / sizeof(uint64_t); i++)
		to[i] = from[i] > to[i] ? from[i] : to[i];
}

static int32_t allocate_all(struct moek_ep_workspace *w, uint64_t ranks,
                            struct moek_error *error_out)
{
	const struct workspace_sizes *s = &w->sizes;
	int32_t status = MOEK_OK;
	const struct need needs[] = {
		{ (void **)&w->groups, s->choices, sizeof(int32_t) },
		{ (void **)&w->local_ids, s->local_ids, sizeof(int32_t) },
		{ (void **)&w->local_weights, s->local_ids, sizeof(float) },
		{ (void **)&w->local_input, s->local_input, 1 },
		{ (void **)&w->cursors, ranks, 2 * sizeof(int) },
	};

	status = allocate(needs, sizeof(needs) / sizeof(needs[0]), error_out);
	for (int i = 0; status == MOEK_OK && i < SIDES; i++) {
		struct side *side = &w->sides[i];
		const struct need its[] = {
			{ (void **)&side->places, s->places, sizeof(int32_t) },
			{ (void **)&side->out, s->out, 1 },
			{ (void **)&side->in, s->in, 1 },
			{ (void **)&side->results_out, s->results_out, 1 },
			{ (void **)&side->results_in, s->results_in, 1 },
			{ (void **)&side->counts, ranks, SIDE_COUNTS * sizeof(int) },
		};

		status = allocate(its, sizeof(its) / sizeof(its[0]), error_out);
	}
	return status;
}

static int32_t open_workspace(struct moek_ep_workspace *w,
                              struct moek_ep_layer *const *layers, uint64_t count,
                              struct moek_error *error_out)
{
	struct moek_layer **local = calloc(count, sizeof(struct moek_layer *));
	uint64_t locals = 0;
	int32_t status;

	if (local == NULL)
		return ep_fail_memory(error_out, "a list of layers");
	for (uint64_t i = 0; i < count; i++) {
		widen(&w->sizes, layers[i]);
		if (layers[i]->local != NULL)
			local[locals++] = layers[i]->local;
	}
	status = allocate_all(w, (uint64_t)layers[0]->ep->ranks, error_out);
	if (status == MOEK_OK && locals != 0)
		status = moek_workspace_create(local, locals, NULL, 0, &w->local,
		                               error_out);
	free(local);
	return status;
}

int32_t moek_ep_workspace_create(struct moek_ep_layer *const *layers, uint64_t count,
                                 struct moek_ep_workspace **workspace_out,
                                 struct moek_error *error_out)
{
	struct moek_error error;
	struct moek_ep_workspace *workspace;
	int32_t status;

	if (layers == NULL || count == 0 || layers[0] == NULL)
		return ep_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		               "parallel workspace: no layers are given");
	workspace = calloc(1, sizeof(*workspace));
	status = workspace == NULL ? ep_fail_memory(&error, "workspace")
	                           : open_workspace(workspace, layers, count, &error);
	status = moek_ep_agree(layers[0]->ep, status, &error);
	if (status == MOEK_OK) {
		*workspace_out = workspace;
		return MOEK_OK;
	}
	moek_ep_workspace_destroy(workspace);
	if (error_out != NULL)
		*error_out = error;
	return status;
}

void moek_ep_workspace_destroy(struct moek_ep_workspace *workspace)
{
	if (workspace == NULL)
		return;
	moek_workspace_destroy(workspace->local);
	for (int i = 0; i < SIDES; i++) {
		free(workspace->sides[i].places);
		free(workspace->sides[i].out);
		free(workspace->sides[i].in);
		free(workspace->sides[i].results_out);
		free(workspace->sides[i].results_in);
		free(workspace->sides[i].counts);
	}
	free(workspace->groups);
	free(workspace->local_ids);
	free(workspace->local_weights);
	free(workspace->local_input);
	free(workspace->cursors);
	free(workspace);
}
