/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/layer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/expert.h"
#include "core/golden.h"
#include "core/memory.h"
#include "core/registry.h"
#include "core/shadow.h"
#include "core/status.h"
#include "core/threads.h"

#define SAMPLED_TOKENS 4096 /* token counts below this are all asked about */

int moek_take(_Atomic uint32_t *busy)
{
	uint32_t idle = 0;

	return atomic_compare_exchange_strong_explicit(
		busy, &idle, 1, memory_order_acquire, memory_order_relaxed);
}

void moek_release(_Atomic uint32_t *busy)
{
	atomic_store_explicit(busy, 0, memory_order_release);
}

int32_t moek_layer_hook_failed(const struct moek_backend *backend, const char *what,
                               int32_t status, struct moek_error *error_out)
{
	int known = status == MOEK_NO_MEMORY || status == MOEK_DEVICE;

	return moek_fail(error_out, known ? status : MOEK_PLUGIN,
	                 status == MOEK_NO_MEMORY ? MOEK_RULE_MEMORY : MOEK_RULE_CREATE,
	                 "%s: %s failed: %s%s", backend->name, what,
	                 moek_status_name(status),
	                 known ? "" : ", it may fail for memory or device only");
}

/** What one attempt to make a layer works on. */
struct making {
	struct moek_layer *layer;
	const struct moek_source *source;
	const struct moek_layer_options *options;
	struct moek_error *error_out; /* not NULL */
	int another_may; /* what failed is of the backend: another one may succeed */
};

/* ---- arguments ---- */

static int32_t bad(struct moek_error *error_out, const char *text)
{
	return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE, "layer: %s",
	                 text);
}

static int32_t check_source(const struct moek_source *source,
                            struct moek_error *error_out)
{
	if (source == NULL || source->struct_size < MOEK_SOURCE_SIZE_1_0 ||
	    source->expert == NULL)
		return bad(error_out, source == NULL ? "source is NULL"
		                      : source->expert == NULL
		                              ? "source has no expert()"
		                              : "source has a short struct_size");
	return MOEK_OK;
}

static int32_t check_map(const struct moek_problem *p, const int32_t *map,
                         uint8_t *seen, struct moek_error *error_out)
{
	uint64_t local = 0;

	for (uint64_t e = 0; e < p->experts; e++) {
		if (map[e] == -1)
			continue;
		if (map[e] < -1 || (uint64_t)map[e] >= p->experts_local)
			return moek_fail(
				error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
				"expert_map: expert %llu maps to %d, must be -1 or "
				"0..%llu",
				(unsigned long long)e, (int)map[e],
				(unsigned long long)p->experts_local - 1);
		if (seen[map[e]]++ != 0)
			return moek_fail(
				error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
				"expert_map: local expert %d is given twice, again for "
				"expert %llu",
				(int)map[e], (unsigned long long)e);
		local++;
	}
	if (local != p->experts_local)
		return moek_fail(
			error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_EXPERT_MAP,
			"expert_map: %llu experts are local, experts_local is %llu",
			(unsigned long long)local,
			(unsigned long long)p->experts_local);
	return MOEK_OK;
}

/** Copy the map of the options, if the problem has one. */
static int32_t take_map(struct moek_layer *layer,
                        const struct moek_layer_options *options,
                        struct moek_error *error_out)
{
	const struct moek_problem *p = &layer->problem;
	const int32_t *map = options != NULL ? options->expert_map : NULL;
	uint8_t *seen;
	int32_t status;

	if ((map != NULL) != ((p->must_understand & MOEK_EXPERT_MAP) != 0))
		return bad(error_out,
		           map != NULL
		                   ? "an expert_map is given, the problem has none"
		                   : "the problem has an expert_map, none is given");
	if (map == NULL)
		return MOEK_OK;
	seen = calloc(p->experts_local, 1);
	layer->map = malloc(p->experts * sizeof(*map));
	if (seen == NULL || layer->map == NULL) {
		free(seen);
		return moek_fail_memory(error_out, "expert map");
	}
	status = check_map(p, map, seen, error_out);
	free(seen);
	if (status == MOEK_OK)
		memcpy(layer->map, map, p->experts * sizeof(*map));
	return status;
}

/* ---- workspace ---- */

/** Could finalize() answer SLOTS for some count of tokens? It is pure: small counts are
 *  all tried, larger ones at the powers of two and the end. */
static int32_t may_leave_slots(const struct moek_layer *layer, int *slots_out,
                               struct moek_error *error_out)
{
	const struct moek_backend *backend = layer->backend;
	uint64_t most = layer->problem.max_tokens;

	*slots_out = 0;
	for (uint64_t tokens = 1; tokens != 0;
	     tokens = tokens == most            ? 0
	              : tokens < SAMPLED_TOKENS ? tokens + 1
	              : tokens > most - tokens  ? most
	                                        : 2 * tokens) {
		uint32_t finalize = backend->experts->finalize(
			backend->plugin_handle, &backend->problem, tokens);

		if (finalize == MOEK_SLOTS)
			*slots_out = 1;
		else if (finalize != MOEK_REDUCED)
			return moek_fail(error_out, MOEK_PLUGIN, MOEK_RULE_NONE,
			                 "%s: finalize answers %u for %llu tokens, "
			                 "must be 1 or 2",
			                 backend->name, finalize,
			                 (unsigned long long)tokens);
	}
	if (*slots_out != 0 && layer->on_device && backend->experts->reduce == NULL)
		return moek_fail(error_out, MOEK_PLUGIN, MOEK_RULE_ABI_SLOT,
		                 "%s: leaves slots on a device and has no reduce",
		                 backend->name);
	return MOEK_OK;
}

static void add_own(struct moek_layer *layer, struct moek_buffer *buffers,
                    uint32_t *count, enum moek_own own, struct moek_buffer buffer)
{
	buffer.align = MOEK_WORKSPACE_ALIGN;
	buffer.last_stage = UINT32_MAX; /* alive throughout: shares with nobody */
	layer->own[own] = *count;
	buffers[(*count)++] = buffer;
}

/** The core's own buffers behind the backend's. */
static void add_owns(struct moek_layer *layer, int slots, struct moek_buffer *buffers,
                     uint32_t *count)
{
	const struct moek_problem *p = &layer->problem;
	/* moek_problem_check has bounded these products */
	uint64_t choices = p->max_tokens * p->top_k,
		 elements = p->max_tokens * p->hidden;
	int scaled = (p->must_understand & MOEK_WEIGHT_ON_INPUT) != 0;

	for (int own = 0; own < MOEK_OWN_COUNT; own++)
		layer->own[own] = MOEK_OWN_NONE;
	add_own(layer, buffers, count, MOEK_OWN_IDS,
	        (struct moek_buffer){ "core: ids", choices, .type = MOEK_I32 });
	if (layer->on_device || scaled)
		add_own(layer, buffers, count, MOEK_OWN_INPUT,
		        (struct moek_buffer){ "core: input", elements,
		                              .type = p->input_type });
	if (slots)
		add_own(layer, buffers, count, MOEK_OWN_SLOTS,
		        (struct moek_buffer){ "core: slots", choices * p->hidden,
		                              .type = MOEK_F32 });
	if (layer->is_reference)
		add_own(layer, buffers, count, MOEK_OWN_MAGNITUDES,
		        (struct moek_buffer){ "core: magnitudes", elements,
		                              .type = MOEK_F32 });
	if (layer->on_device)
		add_own(layer, buffers, count, MOEK_OWN_WEIGHTS,
		        (struct moek_buffer){ "core: weights", choices,
		                              .type = MOEK_F32 });
	if (layer->on_device || layer->is_reference)
		add_own(layer, buffers, count, MOEK_OWN_OUTPUT,
		        (struct moek_buffer){ "core: output", elements,
		                              .type = p->output_type });
}

static int32_t plan_workspace(struct moek_layer *layer, struct moek_error *error_out)
{
	const struct moek_backend *backend = layer->backend;
	struct moek_buffer buffers[MOEK_PLAN_MOST] = { 0 };
	struct moek_plan_request request = {
		.buffers = buffers,
		.workers = layer->on_device ? 1 : layer->workers->count,
		.guarded = (layer->checks & MOEK_CHECK_GUARDS) != 0,
		.poisoned = (layer->checks & MOEK_CHECK_POISON) != 0,
		.backend = backend->name
	};
	int slots = 0;
	int32_t count = backend->experts->workspace_shapes(
		backend->plugin_handle, &backend->problem, layer->problem.max_tokens,
		request.workers, buffers, MOEK_MAX_BUFFERS);
	int32_t status;

	if (count < 0)
		return moek_fail(error_out, MOEK_NO_MEMORY, MOEK_RULE_WORKSPACE,
		                 "%s: its workspace does not fit 64 bits",
		                 backend->name);
	if ((uint32_t)count > MOEK_MAX_BUFFERS)
		return moek_fail(error_out, MOEK_PLUGIN, MOEK_RULE_WORKSPACE,
		                 "%s: has %d workspace buffers, at most %u can be had",
		                 backend->name, (int)count, MOEK_MAX_BUFFERS);
	status = may_leave_slots(layer, &slots, error_out);
	if (status != MOEK_OK)
		return status;
	layer->buffers = (uint32_t)count;
	request.count = (uint32_t)count;
	add_owns(layer, slots, buffers, &request.count);
	return moek_plan_make(&request, &layer->plan, error_out);
}

/* ---- weights ---- */

static int32_t alloc_weights(struct moek_layer *layer, struct moek_error *error_out)
{
	const struct moek_backend *backend = layer->backend;
	uint64_t align = 0;
	uint64_t bytes = backend->experts->prepared_size(backend->plugin_handle,
	                                                 &backend->problem, &align);

	if (bytes == 0)
		return moek_fail(error_out, MOEK_NO_MEMORY, MOEK_RULE_INDEX_RANGE,
		                 "%s: its prepared weights do not fit 64 bits",
		                 backend->name);
	if (align == 0 || (align & (align - 1)) != 0)
		return moek_fail(
			error_out, MOEK_PLUGIN, MOEK_RULE_ALIGNMENT,
			"%s: prepared weights aligned to %llu, must be a power of two",
			backend->name, (unsigned long long)align);
	layer->weights = moek_space_alloc(&layer->space, bytes, align);
	if (layer->weights == NULL)
		return moek_fail(error_out, MOEK_NO_MEMORY, MOEK_RULE_MEMORY,
		                 "%s: out of memory for %llu bytes of prepared weights",
		                 backend->name, (unsigned long long)bytes);
	layer->weight_bytes = bytes;
	return MOEK_OK;
}

struct load {
	struct making *making;
	const int32_t *expert_of; /* [experts_local] -> expert; NULL: the same */
	void **scratch;           /* [workers]: made by the worker that uses it */
	pthread_t caller;
	_Atomic uint64_t done;
	_Atomic uint32_t failed;
	pthread_mutex_t lock; /* guards what follows */
	int32_t status;
	struct moek_error error;
};

static void load_failed(struct load *load, int32_t status,
                        const struct moek_error *error, int another_may)
{
	pthread_mutex_lock(&load->lock);
	if (load->status == MOEK_OK) {
		load->status = status;
		load->error = *error;
		load->making->another_may = another_may;
	}
	pthread_mutex_unlock(&load->lock);
	atomic_store(&load->failed, 1);
}

/** Hand one canonical expert from the source to the backend. */
static int32_t load_one(const struct moek_layer *layer,
                        const struct moek_source *source, uint64_t expert,
                        uint64_t local, void *scratch, int *another_may_out,
                        struct moek_error *error_out)
{
	struct moek_expert canonical;
	int32_t status;

	*another_may_out = 0;
	moek_expert_init(&canonical);
	status = moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
	                   "layer: the source failed at expert %llu and gave no reason",
	                   (unsigned long long)expert);
	status = source->expert(source->self, expert, scratch, &canonical, error_out);
	if (status != MOEK_OK)
		return status;
	status = moek_expert_check(&layer->backend->problem, expert, &canonical,
	                           error_out);
	if (status != MOEK_OK)
		return status;
	status = layer->backend->experts->load_expert(layer->handle, local, &canonical);
	if (status == MOEK_OK)
		return MOEK_OK;
	*another_may_out = status == MOEK_NO_MEMORY || status == MOEK_DEVICE;
	return moek_layer_hook_failed(layer->backend, "load_expert", status, error_out);
}

static void load_body(void *arg, uint64_t local, uint32_t worker)
{
	struct load *load = arg;
	struct making *making = load->making;
	const struct moek_source *source = making->source;
	uint64_t expert = load->expert_of != NULL ? (uint64_t)load->expert_of[local]
	                                          : local;
	struct moek_error error;
	int32_t status;
	int another_may = 0;
	uint64_t done;

	if (atomic_load(&load->failed) != 0)
		return;
	if (load->scratch[worker] == NULL && source->scratch_bytes != 0) {
		load->scratch[worker] = moek_memory_alloc(source->scratch_bytes, 64);
		if (load->scratch[worker] == NULL) {
			status = moek_fail_memory(&error,
			                          "scratch of the weights' source");
			load_failed(load, status, &error, 0);
			return;
		}
	}
	status = load_one(making->layer, source, expert, local, load->scratch[worker],
	                  &another_may, &error);
	if (status != MOEK_OK) {
		load_failed(load, status, &error, another_may);
		return;
	}
	done = atomic_fetch_add(&load->done, 1) + 1;
	/* the callback belongs to the caller's thread; the last call is made after all
	 */
	if (making->options != NULL && making->options->progress != NULL &&
	    done < making->layer->problem.experts_local &&
	    pthread_equal(pthread_self(), load->caller))
		making->options->progress(making->options->progress_self, done,
		                          making->layer->problem.experts_local);
}

/** Which expert each local one is. */
static int32_t *invert_map(const struct moek_layer *layer)
{
	int32_t *expert_of = malloc(layer->problem.experts_local * sizeof(*expert_of));

	for (uint64_t e = 0; expert_of != NULL && e < layer->problem.experts; e++)
		if (layer->map[e] >= 0)
			expert_of[layer->map[e]] = (int32_t)e;
	return expert_of;
}

static int32_t load_experts(struct making *making)
{
	struct moek_layer *layer = making->layer;
	uint64_t count = layer->problem.experts_local;
	struct load load = { .making = making, .caller = pthread_self() };
	int32_t *expert_of = layer->map != NULL ? invert_map(layer) : NULL;

	load.scratch = calloc(layer->workers->count, sizeof(*load.scratch));
	if (load.scratch == NULL || (layer->map != NULL && expert_of == NULL)) {
		free(load.scratch);
		free(expert_of);
		return moek_fail_memory(making->error_out, "loading of weights");
	}
	load.expert_of = expert_of;
	pthread_mutex_init(&load.lock, NULL);
	moek_parallel_for(layer->workers, count, load_body, &load);
	pthread_mutex_destroy(&load.lock);
	for (uint32_t i = 0; i < layer->workers->count; i++)
		moek_memory_free(load.scratch[i]);
	free(load.scratch);
	free(expert_of);
	if (load.status != MOEK_OK)
		*making->error_out = load.error;
	else if (making->options != NULL && making->options->progress != NULL)
		making->options->progress(making->options->progress_self, count, count);
	return load.status;
}

/** The map where a device's kernels can read it. */
static int32_t copy_map(struct moek_layer *layer, struct moek_error *error_out)
{
	uint64_t bytes = layer->problem.experts * sizeof(*layer->map);

	if (!layer->on_device || layer->map == NULL)
		return MOEK_OK;
	layer->device_map = moek_space_alloc(&layer->space, bytes, 4);
	if (layer->device_map == NULL)
		return moek_fail_memory(error_out, "expert map on the device");
	return moek_space_copy(&layer->space, layer->device_map, layer->map, bytes,
	                       MOEK_TO_DEVICE, NULL, error_out);
}

static int32_t create_on_backend(struct making *making)
{
	struct moek_layer *layer = making->layer;
	const struct moek_backend *backend = layer->backend;
	int32_t status = backend->experts->create(backend->plugin_handle,
	                                          backend->device, &backend->problem,
	                                          layer->weights, &layer->handle);

	making->another_may = status == MOEK_NO_MEMORY || status == MOEK_DEVICE;
	if (status != MOEK_OK)
		return moek_layer_hook_failed(backend, "create", status,
		                              making->error_out);
	layer->created = 1;
	return MOEK_OK;
}

static int32_t finish(struct making *making)
{
	const struct moek_backend *backend = making->layer->backend;
	int32_t status = backend->experts->finish(making->layer->handle);

	if (status == MOEK_OK)
		return MOEK_OK;
	making->another_may = status == MOEK_NO_MEMORY || status == MOEK_DEVICE;
	return moek_layer_hook_failed(backend, "finish", status, making->error_out);
}

static int32_t prepare(struct making *making)
{
	struct moek_layer *layer = making->layer;
	int32_t status;

	if ((status = take_map(layer, making->options, making->error_out)) != MOEK_OK)
		return status;
	status = plan_workspace(layer, making->error_out);
	if (status == MOEK_OK)
		status = alloc_weights(layer, making->error_out);
	if (status == MOEK_OK)
		status = copy_map(layer, making->error_out);
	making->another_may = status == MOEK_NO_MEMORY || status == MOEK_DEVICE;
	if (status != MOEK_OK || (status = create_on_backend(making)) != MOEK_OK ||
	    (status = load_experts(making)) != MOEK_OK)
		return status;
	return finish(making);
}

/* ---- the layer ---- */

int32_t moek_layer_make(const struct moek_layer_request *request,
                        struct moek_layer **layer_out, int *another_may_out,
                        struct moek_error *error_out)
{
	struct moek_choice *choice = request->choice;
	const struct moek_backend *backend = moek_choice_backend(choice);
	struct moek_registry *registry = moek_choice_registry(choice);
	struct moek_layer *layer = calloc(1, sizeof(*layer));
	struct making making = { .layer = layer,
		                 .source = request->source,
		                 .options = request->options,
		                 .error_out = error_out };
	int32_t status;

	*another_may_out = 0;
	if (layer == NULL) {
		moek_choice_destroy(choice);
		return moek_fail_memory(error_out, "layer");
	}
	layer->choice = choice;
	layer->backend = backend;
	layer->problem = *moek_choice_problem(choice);
	layer->workers = moek_registry_workers(registry);
	layer->is_reference = request->is_reference;
	layer->checks = request->checks;
	layer->on_device = backend->device != NULL &&
	                   backend->device->kind != MOEK_HOST;
	if (layer->on_device)
		layer->space = (struct moek_space){ backend->plugin,
			                            backend->plugin_handle,
			                            backend->device };
	status = prepare(&making);
	*another_may_out = making.another_may;
	if (status == MOEK_OK)
		*layer_out = layer;
	else
		moek_layer_destroy(layer);
	return status;
}

static int32_t check_create(const struct moek_choice *choice,
                            const struct moek_source *source,
                            const struct moek_layer_options *options,
                            struct moek_error *error_out)
{
	if (choice == NULL)
		return bad(error_out, "choice is NULL");
	if (moek_choice_backend(choice) == NULL)
		return moek_fail(error_out, MOEK_REFUSED, MOEK_RULE_NONE,
		                 "layer: the choice has no winner, see its report");
	if (moek_registry_answers_only(moek_choice_registry(choice)))
		return bad(error_out,
		           "the registry answers for a machine described in a file; "
		           "open one without facts_file to run here");
	if (options != NULL && options->struct_size < MOEK_LAYER_OPTIONS_SIZE_1_0)
		return bad(error_out, "options have a short struct_size");
	return check_source(source, error_out);
}

int32_t moek_layer_create(struct moek_choice *choice, const struct moek_source *source,
                          const struct moek_layer_options *options,
                          struct moek_layer **layer_out, struct moek_error *error_out)
{
	struct moek_error error;
	struct moek_layer_request request = { .source = source, .options = options };
	struct moek_layer *layer = NULL;
	struct moek_choice *current, *next;
	int another_may;
	int32_t status = layer_out == NULL
	                         ? bad(error_out, "layer_out is NULL")
	                         : check_create(choice, source, options, error_out);

	if (status != MOEK_OK)
		return status;
	request.checks = moek_registry_checks(moek_choice_registry(choice));
	next = moek_choice_retain(choice);
	do {
		/* one more owner than the layer: it is needed when the layer fails */
		current = next;
		another_may = 1;
		status = moek_golden_test(current, &error);
		if (status == MOEK_OK) {
			request.choice = moek_choice_retain(current);
			status = moek_layer_make(&request, &layer, &another_may,
			                         &error);
		}
		next = NULL;
		if (status != MOEK_OK && another_may)
			moek_choice_next(current, status, error.text, &next, NULL);
		moek_choice_destroy(current);
	} while (status != MOEK_OK && next != NULL);
	if (status == MOEK_OK) {
		moek_shadow_cast(layer, source);
		*layer_out = layer;
	} else if (error_out != NULL) {
		*error_out = error;
	}
	return status;
}

void moek_layer_destroy(struct moek_layer *layer)
{
	if (layer == NULL)
		return;
	moek_shadow_end(layer->shadow);
	if (layer->created)
		layer->backend->experts->destroy(layer->handle);
	if (layer->device_map != NULL)
		moek_space_free(&layer->space, layer->device_map);
	moek_space_free(&layer->space, layer->weights);
	free(layer->map);
	moek_choice_destroy(layer->choice);
	free(layer);
}

const struct moek_choice *moek_layer_choice(const struct moek_layer *layer)
{
	return layer->choice;
}

uint64_t moek_layer_weight_bytes(const struct moek_layer *layer)
{
	return layer->weight_bytes;
}

uint64_t moek_layer_workspace_bytes(const struct moek_layer *layer)
{
	return layer->plan.bytes;
}

static int32_t reload(struct moek_layer *layer, const struct moek_source *source,
                      uint64_t expert, struct moek_error *error_out)
{
	uint64_t local = layer->map != NULL ? (uint64_t)layer->map[expert] : expert;
	void *scratch = NULL;
	int another_may;
	int32_t status;

	if (source->scratch_bytes != 0) {
		scratch = moek_memory_alloc(source->scratch_bytes, 64);
		if (scratch == NULL)
			return moek_fail_memory(error_out,
			                        "scratch of the weights' source");
	}
	status = load_one(layer, source, expert, local, scratch, &another_may,
	                  error_out);
	if (status == MOEK_OK && layer->shadow != NULL)
		status = load_one(layer->shadow->layer, source, expert, local, scratch,
		                  &another_may, error_out);
	moek_memory_free(scratch);
	return status;
}

int32_t moek_layer_reload(struct moek_layer *layer, const struct moek_source *source,
                          uint64_t expert, struct moek_error *error_out)
{
	struct moek_error error;
	int32_t status;

	if (layer == NULL)
		return bad(error_out, "layer is NULL");
	status = check_source(source, error_out);
	if (status != MOEK_OK)
		return status;
	if (expert >= layer->problem.experts ||
	    (layer->map != NULL && layer->map[expert] < 0))
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                 "layer: expert %llu is %s, it cannot be reloaded",
		                 (unsigned long long)expert,
		                 expert >= layer->problem.experts
		                         ? "none of the model's"
		                         : "not local");
	if (!moek_take(&layer->busy))
		return moek_fail(error_out, MOEK_BUSY, MOEK_RULE_NONE,
		                 "layer: a forward or a reload is running on it");
	status = reload(layer, source, expert, &error);
	moek_release(&layer->busy);
	if (status != MOEK_OK && error_out != NULL)
		*error_out = error;
	return status;
}

/* ---- the workspace of layers ---- */

static int32_t check_layers(struct moek_layer *const *layers, uint64_t count,
                            struct moek_error *error_out)
{
	if (layers == NULL || count == 0)
		return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
		                 "workspace: no layers are given");
	for (uint64_t i = 0; i < count; i++) {
		if (layers[i] == NULL)
			return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
			                 "workspace: layer %llu is NULL",
			                 (unsigned long long)i);
		if (!moek_space_same(&layers[i]->space, &layers[0]->space))
			return moek_fail(error_out, MOEK_BAD_ARGUMENT, MOEK_RULE_NONE,
			                 "workspace: layer %llu (%s) is on another "
			                 "device than layer "
			                 "0 (%s)",
			                 (unsigned long long)i,
			                 layers[i]->backend->name,
			                 layers[0]->backend->name);
	}
	return MOEK_OK;
}

static void widen(struct moek_workspace_request *request, const struct moek_plan *plan)
{
	if (plan->bytes > request->bytes)
		request->bytes = plan->bytes;
	if (plan->align > request->align)
		request->align = plan->align;
	request->filled |= plan->guarded != 0 || plan->poisoned != 0;
	request->zeros |= plan->zeroed != 0;
}

int32_t moek_workspace_create(struct moek_layer *const *layers, uint64_t count,
                              void *memory, uint64_t bytes,
                              struct moek_workspace **workspace_out,
                              struct moek_error *error_out)
{
	struct moek_workspace_request request = { .memory = memory,
		                                  .memory_bytes = bytes };
	struct moek_workspace_request shadow = { .bytes = 0 };
	struct moek_workspace *workspace = NULL;
	int32_t status = check_layers(layers, count, error_out);

	if (status != MOEK_OK)
		return status;
	request.space = layers[0]->space;
	for (uint64_t i = 0; i < count; i++) {
		widen(&request, &layers[i]->plan);
		if (layers[i]->shadow != NULL)
			widen(&shadow, &layers[i]->shadow->layer->plan);
	}
	status = moek_workspace_open(&request, &workspace, error_out);
	if (status == MOEK_OK && shadow.bytes != 0)
		status = moek_workspace_open(&shadow, &workspace->shadow, error_out);
	if (status != MOEK_OK) {
		moek_workspace_destroy(workspace);
		return status;
	}
	if (layers[0]->on_device)
		workspace->choice = moek_choice_retain(layers[0]->choice);
	*workspace_out = workspace;
	return MOEK_OK;
}
