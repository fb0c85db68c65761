/* SPDX-License-Identifier: MIT */
/* A device whose memory faults when the host touches it: pages that only this plugin
 * opens, while it copies or runs. A slot is its input row times (1 + local expert); it
 * maps and cleans ids by itself, as backends on a device do. */
#include "config.h"

#include "fake_layer.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MOST 64

struct piece {
	char *address;
	uint64_t bytes;
};

struct card {
	struct piece pieces[MOST];
	uint32_t count;
	pthread_mutex_t lock; /* held while the pages are open */
};

struct card_layer {
	struct card *card;
	struct moek_problem problem;
	char *weights; /* device memory: one float for each local expert */
};

static void set_access(const struct card *card, int access)
{
	for (uint32_t i = 0; i < card->count; i++)
		mprotect(card->pieces[i].address, card->pieces[i].bytes, access);
}

static void open_pages(struct card *card)
{
	pthread_mutex_lock(&card->lock);
	set_access(card, PROT_READ | PROT_WRITE);
}

static void close_pages(struct card *card)
{
	set_access(card, PROT_NONE);
	pthread_mutex_unlock(&card->lock);
}

static int32_t open_card(const struct moek_host *host, void **plugin_out)
{
	struct card *card = calloc(1, sizeof(*card));

	(void)host;
	if (card == NULL)
		return MOEK_NO_MEMORY;
	pthread_mutex_init(&card->lock, NULL);
	*plugin_out = card;
	return MOEK_OK;
}

static void close_card(void *plugin)
{
	struct card *card = plugin;

	pthread_mutex_destroy(&card->lock);
	free(card);
}

static uint32_t list(void *plugin, struct moek_device *devices_out, uint32_t capacity)
{
	(void)plugin;
	if (capacity > 0) {
		devices_out[0] = (struct moek_device){
			.struct_size = MOEK_DEVICE_SIZE_1_0,
			.kind = MOEK_CUDA,
			.uuid = { 1 }
		};
		memcpy(devices_out[0].arch, "fake_card", sizeof("fake_card"));
	}
	return 1;
}

static int32_t alloc_on(void *plugin, const struct moek_device *device, uint64_t bytes,
                        void **address_out)
{
	struct card *card = plugin;
	void *address;

	(void)device;
	bytes = (bytes + 4095) / 4096 * 4096;
	if (card->count == MOST)
		return MOEK_NO_MEMORY;
	address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (address == MAP_FAILED)
		return MOEK_NO_MEMORY;
	card->pieces[card->count++] = (struct piece){ address, bytes };
	*address_out = address;
	return MOEK_OK;
}

static void free_on(void *plugin, const struct moek_device *device, void *address)
{
	struct card *card = plugin;

	(void)device;
	for (uint32_t i = 0; i < card->count; i++)
		if (card->pieces[i].address == address) {
			munmap(address, card->pieces[i].bytes);
			card->pieces[i] = card->pieces[--card->count];
			return;
		}
	abort(); /* not ours */
}

/** Whether all of @bytes lie in one piece of the card. */
static int is_on_card(const struct card *card, const void *address, uint64_t bytes)
{
	const char *at = address;

	for (uint32_t i = 0; i < card->count; i++)
		if (at >= card->pieces[i].address &&
		    at + bytes <= card->pieces[i].address + card->pieces[i].bytes)
			return 1;
	return 0;
}

static int32_t copy(void *plugin, const struct moek_device *device, void *to,
                    const void *from, uint64_t bytes, uint32_t direction, void *stream)
{
	struct card *card = plugin;

	(void)device;
	(void)stream;
	if (is_on_card(card, to, bytes) != (direction != MOEK_TO_HOST) ||
	    is_on_card(card, from, bytes) != (direction != MOEK_TO_DEVICE))
		return MOEK_DEVICE;
	open_pages(card);
	memcpy(to, from, bytes);
	close_pages(card);
	return MOEK_OK;
}

static int32_t wait(void *plugin, const struct moek_device *device, void *stream)
{
	(void)plugin;
	(void)device;
	(void)stream;
	return MOEK_OK;
}

static int32_t supports_card(void *plugin, const struct moek_device *device,
                             struct moek_verdict *no_out)
{
	(void)plugin;
	return device->kind == MOEK_CUDA
	               ? 1
	               : moek_refuse(no_out, MOEK_RULE_DEVICE_KIND, device->kind);
}

static uint64_t prepared_size(void *plugin, const struct moek_problem *problem,
                              uint64_t *align_out)
{
	(void)plugin;
	*align_out = 256;
	return problem->experts_local * sizeof(float);
}

static int32_t create(void *plugin, const struct moek_device *device,
                      const struct moek_problem *problem, void *weights,
                      void **layer_out)
{
	struct card_layer *layer = calloc(1, sizeof(*layer));

	(void)device;
	if (layer == NULL)
		return MOEK_NO_MEMORY;
	layer->card = plugin;
	layer->problem = *problem;
	layer->weights = weights;
	*layer_out = layer;
	return MOEK_OK;
}

static int32_t load_expert(void *layer, uint64_t local,
                           const struct moek_expert *expert)
{
	struct card_layer *mine = layer;
	float factor = (float)(1 + local);

	(void)expert;
	return copy(mine->card, NULL, mine->weights + local * sizeof(factor), &factor,
	            sizeof(factor), MOEK_TO_DEVICE, NULL);
}

static void destroy(void *layer)
{
	free(layer);
}

/** A buffer of zeros, and one that arrives poisoned with checks on. */
static int32_t workspace_shapes(void *plugin, const struct moek_problem *problem,
                                uint64_t max_tokens, uint32_t workers,
                                struct moek_buffer *buffers_out, uint32_t capacity)
{
	if (capacity < 2)
		return 2;
	rows_shape(plugin, problem, max_tokens, workers, buffers_out, capacity);
	buffers_out[1] = (struct moek_buffer){ .name = "zeros",
		                               .elements = 300000, /* over one MiB */
		                               .align = 4,
		                               .type = MOEK_F32,
		                               .zeroed = 1 };
	return 2;
}

static uint32_t leave_slots(void *plugin, const struct moek_problem *problem,
                            uint64_t tokens)
{
	(void)plugin;
	(void)problem;
	(void)tokens;
	return MOEK_SLOTS;
}

/** Local expert of a slot, or -1. */
static int64_t local_of(const struct card_layer *layer, const struct moek_batch *batch,
                        uint64_t slot)
{
	int32_t id = batch->topk_ids[slot];

	if (id < 0 || (uint64_t)id >= layer->problem.experts)
		return -1;
	return batch->expert_map != NULL ? batch->expert_map[id] : id;
}

static int batch_is_on_card(const struct card_layer *layer,
                            const struct moek_batch *batch)
{
	uint64_t choices = batch->input.rows * layer->problem.top_k;

	return batch->input.space == 1 && batch->output.space == 1 &&
	       batch->workers == NULL &&
	       is_on_card(layer->card, batch->input.data, 4) &&
	       is_on_card(layer->card, batch->output.data, 4) &&
	       is_on_card(layer->card, batch->topk_ids, choices * 4) &&
	       is_on_card(layer->card, batch->topk_weights, choices * 4) &&
	       (batch->expert_map == NULL ||
	        is_on_card(layer->card, batch->expert_map, layer->problem.experts * 4));
}

/** @weighted: times the router weight, added up in the token's row. */
static void add_slot(const struct card_layer *layer, const struct moek_batch *batch,
                     uint64_t slot, int weighted)
{
	uint64_t token = slot / layer->problem.top_k;
	int64_t local = local_of(layer, batch, slot);
	float *to = fake_row(&batch->output, weighted ? token : slot);
	float factor;

	if (local < 0)
		return;
	memcpy(&factor, layer->weights + (uint64_t)local * sizeof(factor),
	       sizeof(factor));
	factor *= weighted ? batch->topk_weights[slot] : 1;
	for (uint64_t c = 0; c < batch->input.columns; c++)
		to[c] = (weighted ? to[c] : 0) +
		        factor * fake_row(&batch->input, token)[c];
}

/** Zeros are zeros, then not any more; the other buffer is filled to its end. */
static int use_workspace(const struct card_layer *layer, const struct moek_batch *batch)
{
	float *rows = batch->buffers[0], *zeros = batch->buffers[1];
	uint64_t elements = layer->problem.max_tokens * layer->problem.top_k *
	                    layer->problem.hidden;
	int good = 1;

	for (uint64_t i = 0; i < 300000; i++) {
		good &= zeros[i] == 0;
		zeros[i] = 1;
	}
	for (uint64_t i = 0; i < elements; i++)
		rows[i] = 1;
	return good;
}

static int32_t forward(void *layer, const struct moek_batch *batch)
{
	const struct card_layer *mine = layer;
	uint64_t choices = batch->input.rows * mine->problem.top_k;
	int weighted = batch->output.rows == batch->input.rows, good;

	if (!batch_is_on_card(mine, batch))
		return MOEK_DEVICE;
	open_pages(mine->card);
	good = use_workspace(mine, batch);
	for (uint64_t row = 0; weighted && row < batch->output.rows; row++)
		fill_row(&batch->output, row, 0);
	for (uint64_t slot = 0; slot < choices; slot++)
		add_slot(mine, batch, slot, weighted);
	close_pages(mine->card);
	return good ? MOEK_OK : MOEK_DEVICE;
}

static int32_t forward_past(void *layer, const struct moek_batch *batch)
{
	const struct card_layer *mine = layer;
	int32_t status = forward(layer, batch);

	open_pages(mine->card);
	((float *)batch->buffers[1])[300000] = 0;
	close_pages(mine->card);
	return status;
}

static int32_t reduce(void *layer, const struct moek_batch *batch,
                      const struct moek_rows *slots)
{
	const struct card_layer *mine = layer;
	uint64_t top_k = mine->problem.top_k;

	if (!batch_is_on_card(mine, batch) || !is_on_card(mine->card, slots->data, 4) ||
	    slots->rows != batch->input.rows * top_k)
		return MOEK_DEVICE;
	open_pages(mine->card);
	for (uint64_t slot = 0; slot < slots->rows; slot++) {
		if (slot % top_k == 0)
			fill_row(&batch->output, slot / top_k, 0);
		for (uint64_t c = 0;
		     local_of(mine, batch, slot) >= 0 && c < slots->columns; c++)
			fake_row(&batch->output,
			         slot / top_k)[c] += batch->topk_weights[slot] *
			                             fake_row(slots, slot)[c];
	}
	close_pages(mine->card);
	return MOEK_OK;
}

#define CARD(the_name, the_finalize, the_forward, the_reduce)                          \
	{                                                                              \
		.struct_size = MOEK_EXPERTS_SIZE_1_0, .rank_class = MOEK_NATIVE,       \
		.name = (the_name), .understands = EVERYTHING,                         \
		.supports_device = supports_card, .supports_quant_scheme = fake_yes,   \
		.supports_activation = fake_yes, .supports_parallel = fake_yes,        \
		.supports_shape = fake_yes, .problem_size = fake_problem_size,         \
		.workspace_shapes = workspace_shapes, .finalize = (the_finalize),      \
		.numerics = fake_numerics, .prepared_size = prepared_size,             \
		.create = create, .load_expert = load_expert, .finish = fake_finish,   \
		.forward = (the_forward), .reduce = (the_reduce), .destroy = destroy   \
	}
static const struct moek_experts table[] = {
	CARD("reduced", fake_reduced, forward, NULL),
	CARD("slots", leave_slots, forward, reduce),
	CARD("past", fake_reduced, forward_past, NULL),
	CARD("no_reduce", leave_slots, forward, NULL),
};
static const struct moek_experts *const experts[] = { &table[0], &table[1], &table[2],
	                                              &table[3], NULL };

MOEK_PLUGIN_EXPORT struct moek_plugin moek_plugin_v1 = {
	.struct_size = MOEK_PLUGIN_SIZE_1_0,
	.abi_major = MOEK_ABI_MAJOR,
	.abi_minor = MOEK_ABI_MINOR,
	.name = "fake_card",
	.version = "0",
	.experts = experts,
	.open = open_card,
	.close = close_card,
	.list = list,
	.alloc = alloc_on,
	.free = free_on,
	.copy = copy,
	.wait = wait,
};
