/* SPDX-License-Identifier: MIT */
/*
 * config.json, and the index of shards: one digit that picks the tensors, the config,
 * and after a NUL the index. Whatever opens must yield its problem, router and experts.
 */
#include "config.h"

#include "kit.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moek/moek.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define KINDS 4
#define EXPERTS "model.layers.0.mlp.experts."

static char folders[KINDS][64];
static volatile float sink;

/* H 32, I 32, E 2 everywhere, so that one config can suit all */

static void add_modules(struct kit_file *file, int kind)
{
	static const char *const modules[3] = { "gate_proj", "up_proj", "down_proj" };
	char name[128];

	for (unsigned i = 0; i < 6; i++) {
		const char *module = modules[i % 3];

		snprintf(name, sizeof(name), EXPERTS "%u.%s.weight%s", i / 3, module,
		         kind == 0 ? "" : "_packed");
		kit_add(file, name, kind == 0 ? "BF16" : "I32",
		        kind == 0 ? "32,32" : "32,4", NULL);
		if (kind == 0)
			continue;
		snprintf(name, sizeof(name), EXPERTS "%u.%s.weight_scale", i / 3,
		         module);
		kit_add(file, name, "BF16", "32,2", NULL);
		if (kind == 1)
			continue;
		snprintf(name, sizeof(name), EXPERTS "%u.%s.weight_zero_point", i / 3,
		         module);
		kit_add(file, name, "I32", "4,2", NULL);
		snprintf(name, sizeof(name), EXPERTS "%u.%s.weight_g_idx", i / 3,
		         module);
		kit_add(file, name, "I32", "32", NULL);
	}
}

static void add_stacks(struct kit_file *file)
{
	static const char *const parts[2] = { "gate_up", "down" };
	char name[128];

	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), EXPERTS "%s_proj_blocks", parts[i]);
		kit_add(file, name, "U8", i == 0 ? "2,64,1,16" : "2,32,1,16", NULL);
		snprintf(name, sizeof(name), EXPERTS "%s_proj_scales", parts[i]);
		kit_add(file, name, "U8", i == 0 ? "2,64,1" : "2,32,1", NULL);
		snprintf(name, sizeof(name), EXPERTS "%s_proj_bias", parts[i]);
		kit_add(file, name, "BF16", i == 0 ? "2,64" : "2,32", NULL);
	}
}

static void make_folder(int kind)
{
	struct kit_file file = { 0 };

	strcpy(folders[kind], kit_folder());
	kit_add(&file, "model.layers.0.mlp.gate.weight", "BF16", "2,32", NULL);
	kit_add(&file, "model.layers.0.mlp.gate.e_score_correction_bias", "F32", "2",
	        NULL);
	kit_add(&file, "model.layers.0.mlp.router.weight", "BF16", "2,32", NULL);
	kit_add(&file, "model.layers.0.mlp.router.bias", "BF16", "2", NULL);
	if (kind == 3)
		add_stacks(&file);
	else
		add_modules(&file, kind);
	kit_save(&file, kit_path(folders[kind], "model.safetensors"));
}

static void clean_up(void)
{
	char command[96];

	for (int kind = 0; kind < KINDS; kind++) {
		snprintf(command, sizeof(command), "rm -rf '%s'", folders[kind]);
		if (system(command) != 0)
			return;
	}
}

static void read_matrix(const struct moek_matrix *m)
{
	for (uint64_t r = 0; r < m->rows && m->bias != NULL; r++)
		sink += m->bias[r];
	sink += (float)((const uint8_t *)m->codes)[m->rows * m->columns / 2 - 1];
}

static void read_layer(struct moek_checkpoint *checkpoint, uint64_t layer)
{
	struct moek_router router;
	struct moek_problem problem;
	struct moek_source source;
	struct moek_error error;
	void *scratch;

	if (moek_checkpoint_problem(checkpoint, layer, &problem) != MOEK_OK ||
	    moek_checkpoint_router(checkpoint, layer, &router) != MOEK_OK ||
	    moek_checkpoint_source(checkpoint, layer, &source, &error) != MOEK_OK)
		abort();
	problem.max_tokens = 1;
	if (moek_problem_check(&problem, &error) != MOEK_OK)
		abort();
	scratch = malloc(source.scratch_bytes);
	for (uint64_t e = 0; e < problem.experts; e++) {
		struct moek_expert expert = { 0 };

		if (source.expert(source.self, e, scratch, &expert, &error) != MOEK_OK)
			continue;
		read_matrix(&expert.gate);
		read_matrix(&expert.up);
		read_matrix(&expert.down);
	}
	free(scratch);
	moek_source_close(&source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct moek_checkpoint *checkpoint = NULL;
	struct moek_error error = { .text = "" };
	const uint8_t *nul;
	size_t config;
	int kind;

	if (folders[0][0] == '\0') {
		for (kind = 0; kind < KINDS; kind++)
			make_folder(kind);
		atexit(clean_up);
	}
	if (size == 0)
		return 0;
	kind = data[0] % KINDS;
	nul = memchr(data + 1, '\0', size - 1);
	config = nul == NULL ? size - 1 : (size_t)(nul - data) - 1;
	kit_write(kit_path(folders[kind], "config.json"), data + 1, config);
	unlink(kit_path(folders[kind], "model.safetensors.index.json"));
	if (nul != NULL)
		kit_write(kit_path(folders[kind], "model.safetensors.index.json"),
		          nul + 1, size - config - 2);
	if (moek_checkpoint_open(NULL, folders[kind], &checkpoint, &error) == MOEK_OK)
		for (uint64_t i = 0; i < moek_checkpoint_layers(checkpoint); i++)
			read_layer(checkpoint, i);
	else if (error.text[0] == '\0')
		abort();
	moek_checkpoint_close(checkpoint);
	return 0;
}
