/* SPDX-License-Identifier: MIT */
/* Logits and layers against those of others: a file, or a second backend. */
#include "lm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** How far two arrays are apart. */
struct distance {
	double most, mean; /* of |a - b| */
	double norm;       /* |a - b| / |b| */
	double size;       /* largest |b| */
};

static struct distance measure(const float *a, const float *b, size_t count)
{
	struct distance d = { 0 };
	double apart = 0, all = 0;

	for (size_t i = 0; i < count; i++) {
		double one = fabs((double)a[i] - b[i]);

		/* a NaN is as far as can be */
		d.most = one <= d.most ? d.most : isnan(one) ? INFINITY : one;
		d.size = fmax(d.size, fabs((double)b[i]));
		d.mean += one / (double)count;
		apart += one * one;
		all += (double)b[i] * b[i];
	}
	d.norm = all > 0 ? sqrt(apart / all) : apart > 0 ? INFINITY : 0;
	return d;
}

static void print_json(struct distance d)
{
	printf("{\"max\": %.9g, \"mean\": %.9g, \"relative_norm\": %.9g}", d.most,
	       d.mean, d.norm);
}

static void print_text(const char *name, struct distance d)
{
	printf("%-10s  max %.3g  mean %.3g  relative norm %.3g\n", name, d.most, d.mean,
	       d.norm);
}

static double agreement(const float *a, const float *b, size_t rows, size_t vocabulary)
{
	size_t same = 0;

	for (size_t i = 0; i < rows; i++)
		same += lm_greedy(a + i * vocabulary, vocabulary) ==
		        lm_greedy(b + i * vocabulary, vocabulary);
	return (double)same / (double)rows;
}

/** One text through a model on one backend. */
struct pass {
	float *logits; /* [count][vocabulary] */
	float *layers; /* [layers][count][hidden] */
};

static struct pass run_text(const struct lm_model *model, struct lm_experts *experts,
                            const uint32_t *ids, size_t count)
{
	struct lm_runner *runner = lm_runner_open(model, experts, 1, count);
	struct lm_token *tokens = lm_allocate(count, sizeof(*tokens));
	struct pass pass = {
		lm_allocate(count, model->vocabulary * sizeof(float)),
		lm_allocate(model->layers * count, model->hidden * sizeof(float)),
	};

	for (size_t i = 0; i < count; i++)
		tokens[i] = (struct lm_token){ ids[i], 0, (uint32_t)i, 1 };
	runner->trace = pass.layers;
	lm_run(runner, tokens, count, pass.logits);
	free(tokens);
	lm_runner_close(runner);
	return pass;
}

static void end_pass(struct pass *pass)
{
	free(pass->logits);
	free(pass->layers);
}

/* Logits, then what the experts of each layer gave. */
static void print_passes(const struct lm_model *model, const struct pass *a,
                         const struct pass *b, size_t count, int json)
{
	size_t rows = count * model->hidden;
	struct distance d = measure(a->logits, b->logits, count * model->vocabulary);

	if (json) {
		printf(", \"logits\": ");
		print_json(d);
		printf(", \"layers\": [");
	} else {
		print_text("logits", d);
	}
	for (size_t layer = 0; layer < model->layers; layer++) {
		char name[32];

		d = measure(a->layers + layer * rows, b->layers + layer * rows, rows);
		if (json) {
			printf("%s", layer > 0 ? ", " : "");
			print_json(d);
		} else {
			snprintf(name, sizeof(name), "layers.%zu", layer);
			print_text(name, d);
		}
	}
	if (json)
		printf("]}\n");
}

/* ---- two backends ---- */

void lm_compare(const struct lm_model *model, struct lm_experts *const *pair,
                const struct lm_text *text, int json)
{
	struct pass a = run_text(model, pair[0], text->ids, text->count);
	struct pass b = run_text(model, pair[1], text->ids, text->count);
	double same = agreement(a.logits, b.logits, text->count, model->vocabulary);

	if (json) {
		printf("{\"backends\": [");
		lm_print_json(lm_experts_backend(pair[0]));
		printf(", ");
		lm_print_json(lm_experts_backend(pair[1]));
		printf("], \"tokens\": %zu, \"greedy_agreement\": %.6f", text->count,
		       same);
	} else {
		printf("%s and %s over %zu tokens: the same greedy token after "
		       "%.2f%%\n",
		       lm_experts_backend(pair[0]), lm_experts_backend(pair[1]),
		       text->count, 100 * same);
	}
	print_passes(model, &a, &b, text->count, json);
	end_pass(&a);
	end_pass(&b);
}

/* ---- the logits of others ---- */

static struct moek_tensor find(struct moek_safetensors *file, const char *path,
                               const char *name, const char *dtype, size_t elements)
{
	struct moek_tensor tensor = { .struct_size = MOEK_INIT(TENSOR) };
	struct moek_error error;
	uint64_t count = 1;

	lm_must(moek_safetensors_tensor(file, name, &tensor, &error), &error);
	for (uint32_t i = 0; i < tensor.rank; i++)
		count *= tensor.shape[i];
	if (strcmp(tensor.dtype, dtype) != 0 || (elements > 0 && count != elements))
		lm_stop(LM_BAD_INPUT,
		        "%s: %s is %s of %llu elements, must be %s of %zu", path, name,
		        tensor.dtype, (unsigned long long)count, dtype, elements);
	return tensor;
}

/* What the file says of every layer, as run_text() gives it. */
static struct pass read_oracle(const struct lm_model *model, const char *path,
                               struct lm_text *text_out)
{
	struct moek_safetensors *file = NULL;
	struct moek_tensor tensor;
	struct moek_error error;
	struct pass pass;
	size_t count;

	lm_must(moek_safetensors_open(path, &file, &error), &error);
	tensor = find(file, path, "input_bytes", "U8", 0);
	count = (size_t)tensor.bytes;
	if (count == 0 || count > model->context)
		lm_stop(LM_BAD_INPUT, "%s: %zu bytes, the context is %zu", path, count,
		        model->context);
	text_out->count = count;
	text_out->ids = lm_allocate(count, sizeof(uint32_t));
	for (size_t i = 0; i < count; i++) {
		text_out->ids[i] = ((const uint8_t *)tensor.data)[i];
		if (text_out->ids[i] >= model->vocabulary)
			lm_stop(LM_BAD_INPUT,
			        "%s: byte %u is outside the vocabulary of %zu", path,
			        (unsigned)text_out->ids[i], model->vocabulary);
	}
	pass.logits = lm_allocate(count, model->vocabulary * sizeof(float));
	pass.layers = lm_allocate(model->layers * count, model->hidden * sizeof(float));
	tensor = find(file, path, "logits", "F32", count * model->vocabulary);
	memcpy(pass.logits, tensor.data, (size_t)tensor.bytes);
	for (size_t layer = 0; layer < model->layers; layer++) {
		char name[48];

		snprintf(name, sizeof(name), "layers.%zu.moe_out", layer);
		tensor = find(file, path, name, "F32", count * model->hidden);
		memcpy(pass.layers + layer * count * model->hidden, tensor.data,
		       (size_t)tensor.bytes);
	}
	moek_safetensors_close(file);
	return pass;
}

/* What rounding may do to a logit, relative to the largest: five standard deviations of
 * independent roundings, each of at most half a unit in the last place, taken at full
 * size. fp32 rounds once for each term of the 6 matrix products of a layer and of the
 * head; bf16 experts round input, activation and output besides. */
static double allowance(const struct lm_model *model, const struct lm_experts *experts)
{
	double terms = (6 * (double)model->layers + 1) * (double)model->hidden;
	double fine = terms / 3 * 0x1p-48;
	double coarse = experts->type == MOEK_F32 ? 0 : (double)model->layers * 0x1p-18;

	return 5 * sqrt(fine + coarse);
}

int lm_check_logits(const struct lm_model *model, struct lm_experts *experts,
                    const char *path, int json)
{
	struct lm_text text = { 0 };
	struct pass theirs = read_oracle(model, path, &text);
	struct pass ours = run_text(model, experts, text.ids, text.count);
	struct distance d = measure(ours.logits, theirs.logits,
	                            text.count * model->vocabulary);
	double allowed = allowance(model, experts) * d.size;
	int within = d.most <= allowed;

	if (json) {
		printf("{\"backend\": ");
		lm_print_json(lm_experts_backend(experts));
		printf(", \"tokens\": %zu, \"greedy_agreement\": %.6f, \"allowed\": "
		       "%.9g, "
		       "\"within\": %s",
		       text.count,
		       agreement(ours.logits, theirs.logits, text.count,
		                 model->vocabulary),
		       allowed, within ? "true" : "false");
	} else {
		printf("%s, %zu tokens: logits up to %.3g are off by up to %.3g, %.3g "
		       "allowed: %s\n",
		       lm_experts_backend(experts), text.count, d.size, d.most, allowed,
		       within ? "good" : "wrong");
	}
	print_passes(model, &ours, &theirs, text.count, json);
	end_pass(&ours);
	end_pass(&theirs);
	free(text.ids);
	return within;
}
