/* SPDX-License-Identifier: MIT */
/* moek inspect: the expert layers of a checkpoint, from config.json and headers alone.
 */
#include "config.h"

#include "tools/place.h"
#include "tools/writer.h"
#include "tools/tool.h"

#include <stdio.h>

static const char *scoring_name(uint32_t scoring)
{
	switch (scoring) {
	case MOEK_SOFTMAX:
		return "softmax";
	case MOEK_SIGMOID:
		return "sigmoid";
	case MOEK_SQRT_SOFTPLUS:
		return "sqrt_softplus";
	default:
		return "?";
	}
}

/** "int4 group 32 bf16 scales, zero points" of one projection. */
static void print_scheme(const char *name, const struct moek_scheme *scheme)
{
	printf("    %-10s%s", name, moek_type_name(scheme->weight));
	if (scheme->scale != 0 && scheme->group_size == 0)
		printf(", one scale (%s) for a row", moek_type_name(scheme->scale));
	else if (scheme->scale != 0)
		printf(", groups of %llu, scales %s",
		       (unsigned long long)scheme->group_size,
		       moek_type_name(scheme->scale));
	printf("%s%s%s%s\n", scheme->zero_points ? ", zero points" : "",
	       scheme->column_groups ? ", activation order" : "",
	       scheme->bias ? ", bias" : "",
	       scheme->input_scale ? ", input scale" : "");
}

static void print_router(const struct moek_router *router)
{
	printf("    router    top %llu of %llu, %s%s%s",
	       (unsigned long long)router->top_k, (unsigned long long)router->experts,
	       scoring_name(router->scoring),
	       router->score_chosen ? " over the chosen" : "",
	       router->renormalise ? ", divided by the sum of the chosen" : "");
	if (router->groups > 1)
		printf(", %u of %u groups", router->groups_kept, router->groups);
	if (router->scaling != 0 && router->scaling != 1)
		printf(", times %g", (double)router->scaling);
	printf("%s%s%s%s\n", router->bias != NULL ? ", bias for choosing" : "",
	       router->expert_scale != NULL ? ", a scale for each expert" : "",
	       router->jitter > 0 ? ", sparsemixer" : "",
	       router->weight_on_input ? ", weights on the input" : "");
}

static void print_activation(const struct moek_problem *problem)
{
	printf("    function  %s%s", moek_activation_name(problem->activation),
	       problem->gated ? ", gated" : ", not gated");
	if (problem->alpha != 0)
		printf(", alpha %g", (double)problem->alpha);
	if (problem->beta != 0)
		printf(", beta %g", (double)problem->beta);
	if (problem->limit != 0)
		printf(", limit %g", (double)problem->limit);
	printf("; activations %s, %s\n", moek_activations_name(problem->activations),
	       moek_type_name(problem->input_type));
}

static void print_shape(const struct moek_problem *problem)
{
	printf("    shape     experts %llu", (unsigned long long)problem->experts);
	if (problem->experts_local != problem->experts)
		printf(" (%llu local)", (unsigned long long)problem->experts_local);
	printf(", top_k %llu, hidden %llu, intermediate %llu",
	       (unsigned long long)problem->top_k, (unsigned long long)problem->hidden,
	       (unsigned long long)problem->intermediate);
	if (problem->shards > 1)
		printf(" (shard %u/%u)", problem->shard, problem->shards);
	putchar('\n');
}

/** Bytes of the experts that are read: of this shard, and of the local experts. */
static uint64_t read_bytes(const struct moek_layer_info *info,
                           const struct moek_problem *problem)
{
	return info->read_bytes / problem->experts * problem->experts_local;
}

static void print_reads(const struct alike *alike)
{
	uint64_t bytes = read_bytes(&alike->info, &alike->problem);

	if (bytes != alike->info.weight_bytes)
		printf("    reads     %.2f MiB of them\n", (double)bytes / 1048576);
}

/** What the backend that would run the layer makes of its weights. */
struct prepared {
	uint64_t bytes; /* 0: nobody would */
	char backend[96];
};

static struct prepared prepared_of(const struct options *options,
                                   const struct session *session,
                                   const struct alike *alike)
{
	struct moek_problem problem = alike->problem;
	struct moek_choice *choice = NULL;
	struct prepared prepared = { .backend = "" };

	problem.max_tokens = 1;
	moek_choose(session->registry, &problem, options->backend, alike->label,
	            &choice, NULL);
	if (choice != NULL && moek_choice_winner(choice) != NULL) {
		prepared.bytes = moek_choice_weight_bytes(choice);
		snprintf(prepared.backend, sizeof(prepared.backend), "%s",
		         moek_choice_winner(choice));
	}
	moek_choice_destroy(choice);
	return prepared;
}

static void print_layers(const struct alike *alike, const struct moek_router *router,
                         const struct prepared *prepared)
{
	const struct moek_problem *problem = &alike->problem;

	printf("%s  %s, %s, %.2f MiB of experts%s\n", alike->label, alike->info.family,
	       alike->info.format, (double)alike->info.weight_bytes / 1048576,
	       alike->count > 1 ? " in each" : "");
	print_shape(problem);
	print_reads(alike);
	if (prepared->bytes != 0)
		printf("    prepared  %.2f MiB on %s\n",
		       (double)prepared->bytes / 1048576, prepared->backend);
	else
		puts("    prepared  by nobody: moek explain says why");
	print_scheme("gate_up", &problem->gate_up);
	print_scheme("down", &problem->down);
	print_activation(problem);
	if (router != NULL)
		print_router(router);
	if (alike->info.unrouted[0] != '\0')
		printf("    routing   %s\n", alike->info.unrouted);
	if (alike->info.shared[0] != '\0')
		printf("    shared    %.2f MiB of experts of every token, not run: "
		       "%s\n",
		       (double)alike->info.shared_bytes / 1048576, alike->info.shared);
}

static void write_scheme(struct writer *writer, const char *key,
                         const struct moek_scheme *scheme)
{
	writer_open(writer, key, '{');
	writer_string(writer, "weight", moek_type_name(scheme->weight));
	writer_string(writer, "scale",
	              scheme->scale != 0 ? moek_type_name(scheme->scale) : NULL);
	writer_number(writer, "group_size", scheme->group_size);
	writer_bool(writer, "zero_points", scheme->zero_points != 0);
	writer_bool(writer, "column_groups", scheme->column_groups != 0);
	writer_bool(writer, "bias", scheme->bias != 0);
	writer_bool(writer, "input_scale", scheme->input_scale != 0);
	writer_close(writer, '}');
}

static void write_router(struct writer *writer, const struct moek_router *router)
{
	writer_open(writer, "router", '{');
	writer_string(writer, "scoring", scoring_name(router->scoring));
	writer_bool(writer, "score_chosen", router->score_chosen != 0);
	writer_bool(writer, "renormalise", router->renormalise != 0);
	writer_number(writer, "groups", router->groups);
	writer_number(writer, "groups_kept", router->groups_kept);
	writer_real(writer, "scaling",
	            router->scaling != 0 ? (double)router->scaling : 1);
	writer_bool(writer, "bias", router->bias != NULL);
	writer_bool(writer, "weight_on_input", router->weight_on_input != 0);
	writer_close(writer, '}');
}

static void write_layer(struct writer *writer, const struct moek_layer_info *info,
                        const struct moek_problem *problem,
                        const struct moek_router *router,
                        const struct prepared *prepared)
{
	writer_open(writer, NULL, '{');
	writer_string(writer, "name", info->name);
	writer_number(writer, "number", info->number);
	writer_string(writer, "family", info->family);
	writer_string(writer, "format", info->format);
	writer_number(writer, "weight_bytes", info->weight_bytes);
	writer_number(writer, "read_bytes", read_bytes(info, problem));
	writer_number(writer, "prepared_bytes", prepared->bytes);
	writer_string(writer, "backend",
	              prepared->backend[0] != '\0' ? prepared->backend : NULL);
	writer_number(writer, "experts_local", problem->experts_local);
	writer_number(writer, "shard", problem->shard);
	writer_number(writer, "shards", problem->shards);
	writer_string(writer, "unrouted",
	              info->unrouted[0] != '\0' ? info->unrouted : NULL);
	writer_string(writer, "shared", info->shared[0] != '\0' ? info->shared : NULL);
	writer_number(writer, "shared_bytes", info->shared_bytes);
	writer_number(writer, "experts", problem->experts);
	writer_number(writer, "top_k", problem->top_k);
	writer_number(writer, "hidden", problem->hidden);
	writer_number(writer, "intermediate", problem->intermediate);
	writer_string(writer, "activation", moek_activation_name(problem->activation));
	writer_bool(writer, "gated", problem->gated != 0);
	writer_real(writer, "alpha", (double)problem->alpha);
	writer_real(writer, "beta", (double)problem->beta);
	writer_real(writer, "limit", (double)problem->limit);
	writer_string(writer, "activations",
	              moek_activations_name(problem->activations));
	writer_string(writer, "input_type", moek_type_name(problem->input_type));
	write_scheme(writer, "gate_up", &problem->gate_up);
	write_scheme(writer, "down", &problem->down);
	if (router != NULL)
		write_router(writer, router);
	writer_close(writer, '}');
}

static void inspect(const struct options *options, const struct session *session,
                    struct writer *writer)
{
	const struct moek_checkpoint *checkpoint = session->checkpoint;
	struct alike alike;
	uint64_t layers = 0, bytes = 0;

	for (uint64_t from = 0; tool_alike(options, session, from, &alike);
	     from = alike.first + alike.count) {
		struct moek_router router = { .struct_size = MOEK_INIT(ROUTER) };
		struct moek_layer_info info = { .struct_size = MOEK_INIT(LAYER_INFO) };
		int routed = moek_checkpoint_router(checkpoint, alike.first, &router) ==
		             MOEK_OK;

		struct prepared prepared = prepared_of(options, session, &alike);

		layers += alike.count;
		bytes += alike.count * alike.info.weight_bytes;
		if (!options->json)
			print_layers(&alike, routed ? &router : NULL, &prepared);
		for (uint64_t i = 0; options->json && i < alike.count; i++)
			if (moek_checkpoint_layer(checkpoint, alike.first + i, &info) ==
			    MOEK_OK)
				write_layer(writer, &info, &alike.problem,
				            routed ? &router : NULL, &prepared);
	}
	if (!options->json)
		printf("%llu expert layer%s, %.2f MiB of experts\n",
		       (unsigned long long)layers, layers == 1 ? "" : "s",
		       (double)bytes / 1048576);
}

int command_inspect(const struct options *options)
{
	struct writer writer = { 0 };
	struct session session;
	struct moek_error error;
	int32_t status = MOEK_OK;

	if (options->trace != NULL && options->ranks_wanted == 0) {
		tool_say("inspect: --trace goes with --ranks");
		return TOOL_USAGE;
	}
	if (tool_open(options, &session, &error) != MOEK_OK)
		return tool_fail(&error);
	if (options->json) {
		writer_open(&writer, NULL, '{');
		writer_string(&writer, "checkpoint", options->checkpoint);
		writer_open(&writer, "layers", '[');
	}
	inspect(options, &session, &writer);
	if (options->json)
		writer_close(&writer, ']');
	if (options->ranks_wanted != 0)
		status = place_summary(options, &session,
		                       options->json ? &writer : NULL, &error);
	if (options->tensors)
		list_tensors(options, session.checkpoint, &writer);
	if (options->json)
		writer_close(&writer, '}');
	tool_close(&session);
	fflush(stdout);
	return status == MOEK_OK ? TOOL_DONE : tool_fail(&error);
}
