/* SPDX-License-Identifier: MIT */
/* moek-lm, a host of libmoek that runs whole models. Where to read:
 *
 *   experts.c    all that is said to libmoek about expert layers: the worked example
 *   model.c      config.json and tensors; what is not an expert is kept as fp32
 *   attention.c  attention with a cache of keys and values
 *   forward.c    tokens to logits
 *   math.c       matrix products, norms, rotations
 *   serve.c      prompts of many requests in one batch; speed
 *   score.c      tasks, and the loss on a text
 *   compare.c    logits of others, two backends side by side
 *   main.c       the command line
 *
 * A program may stop where a library may not: what fails here ends it, with a reason.
 */
#ifndef MOEK_LM_H
#define MOEK_LM_H

#include <stddef.h>

#include <moek/moek.h>

/** Exit codes. */
enum { LM_DONE = 0, LM_WRONG = 1, LM_USAGE = 2, LM_BAD_INPUT = 3 };

/* ---- util.c ---- */

void lm_stop(int code, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));
/** Stop with the error's text unless @status is MOEK_OK. */
void lm_must(int32_t status, const struct moek_error *error);
/** Zeroed; stops when there is no memory. To be given to free(). */
void *lm_allocate(size_t count, size_t bytes);
char *lm_read(const char *path, size_t *bytes_out);
double lm_seconds(void);
/** Print a string as JSON. */
void lm_print_json(const char *text);

/* ---- math.c ---- */

/** y = W x + b, prepared for lm_linear_run(). */
struct lm_linear {
	float *packed; /* [rows / 8][columns][8]: 8 rows side by side */
	float *bias;   /* [rows], or NULL */
	size_t rows, columns;
};

void lm_linear_make(struct lm_linear *linear, const float *weight, float *bias,
                    size_t rows, size_t columns);
void lm_linear_free(struct lm_linear *linear);
/** out [count][rows] = in [count][columns]. */
void lm_linear_run(const struct moek_workers *workers, const struct lm_linear *linear,
                   const float *in, size_t count, float *out);

float lm_dot(const float *a, const float *b, size_t count);
/** out = in / rms(in) * weight; out may be in. */
void lm_norm(const float *in, const float *weight, float epsilon, size_t count,
             float *out);

/** Rotary embedding: pair i of a head turns by position * inverse[i]. */
struct lm_rotary {
	size_t half;    /* pairs */
	float *inverse; /* [half] */
	float scale;    /* on sine and cosine (YaRN) */
};

void lm_rotary_angles(const struct lm_rotary *rotary, size_t position, float *cosines,
                      float *sines);
void lm_rotate(float *head, const float *cosines, const float *sines, size_t half);

/* ---- model.c ---- */

struct lm_attention {
	struct lm_linear q, k, v, o;
	float *q_norm, *k_norm; /* [head_size], or NULL */
	float *sinks;           /* [heads], or NULL */
	size_t window;          /* keys that a query sees; 0: all before it */
};

struct lm_block {
	float *attention_norm, *experts_norm; /* [hidden] */
	struct lm_attention attention;
};

/** Everything of a checkpoint but its experts. */
struct lm_model {
	struct moek_checkpoint *checkpoint;
	const struct moek_workers *workers;
	const char *path;
	size_t layers, hidden, heads, kv_heads, head_size, vocabulary;
	size_t context; /* positions that it was made for */
	float epsilon;
	struct lm_rotary rotary;
	float *embedding; /* [vocabulary][hidden] */
	struct lm_block *blocks;
	float *norm;
	struct lm_linear head;
};

struct lm_model *lm_model_open(struct moek_registry *registry, const char *path);
void lm_model_close(struct lm_model *model);

/* ---- experts.c ---- */

struct lm_experts_options {
	const char *request; /* "auto", "require cpu" ... */
	const char
		*change;   /* "key=value,...": over what the checkpoint says, or NULL */
	uint32_t type;     /* of what goes in and comes out; 0: fp32 */
	size_t max_tokens; /* of one forward */
};

/** The expert layers of a model on the backends that were chosen for them. */
struct lm_experts {
	struct moek_checkpoint *checkpoint;
	size_t layers, max_tokens, hidden;
	uint32_t type;
	struct moek_layer **layer;
	struct moek_workspace *workspace;
	struct moek_router *routers;
	int32_t *ids;            /* [max_tokens][top_k] */
	float *logits, *weights; /* [max_tokens][experts], [max_tokens][top_k] */
	void *in, *out;          /* [max_tokens][hidden] of type */
	double seconds;          /* spent in moek_layer_forward() */
};

struct lm_experts *lm_experts_open(struct moek_registry *registry,
                                   struct moek_checkpoint *checkpoint,
                                   const struct lm_experts_options *options);
void lm_experts_close(struct lm_experts *experts);
/** out [count][hidden] = the experts of layer @index over in, router included. */
void lm_experts_run(struct lm_experts *experts, size_t index, const float *in,
                    size_t count, float *out);
/** "cpu.int4_avx2" of the first layer. */
const char *lm_experts_backend(const struct lm_experts *experts);

/* ---- attention.c ---- */

/** One token of one sequence. Tokens of a sequence come in order of position, and all
 *  before it have been run. */
struct lm_token {
	uint32_t id, sequence, position;
	uint32_t wanted; /* 1: its logits are */
};

/** Keys and values of all layers: [layers][sequences][positions][kv_heads * head_size].
 */
struct lm_cache {
	size_t sequences, positions, width;
	float *keys, *values;
};

/** What one forward works in; rows are tokens. */
struct lm_room {
	float *stream, *normed, *added; /* [hidden] */
	float *q, *k, *v;
	float *cosines, *sines; /* [head_size / 2] */
	float *scores;          /* [workers][positions] */
	float *last;            /* [hidden]: rows whose logits are wanted */
};

/** room->added = attention(room->normed). */
void lm_attend(const struct lm_model *model, size_t layer, struct lm_cache *cache,
               const struct lm_token *tokens, size_t count, struct lm_room *room);

/* ---- forward.c ---- */

/** A model, its experts and a cache, ready to run. */
struct lm_runner {
	const struct lm_model *model;
	struct lm_experts *experts;
	struct lm_cache cache;
	struct lm_room room;
	float *trace; /* NULL, or [layers][tokens of one run][hidden]: what experts gave
	               */
	double seconds; /* spent in lm_run() */
	size_t tokens;
};

struct lm_runner *lm_runner_open(const struct lm_model *model,
                                 struct lm_experts *experts, size_t sequences,
                                 size_t positions);
void lm_runner_close(struct lm_runner *runner);
/** logits_out [wanted tokens][vocabulary], in the order of the tokens. */
void lm_run(struct lm_runner *runner, const struct lm_token *tokens, size_t count,
            float *logits_out);
uint32_t lm_greedy(const float *logits, size_t vocabulary);

/* ---- serve.c ---- */

/** One prompt and its answer. */
struct lm_request {
	const uint32_t *prompt;
	size_t prompt_count;
	size_t most;                /* tokens of the answer */
	uint32_t end;               /* the token that ends it before */
	uint32_t *answer;           /* [most] */
	size_t answer_count;        /* out */
	void (*token)(uint32_t id); /* called for each as it comes; may be NULL */
};

/** What the commands have in common. */
struct lm_score_options {
	const char *file;
	size_t limit; /* rows of each task, or windows of text; 0: all */
	size_t batch; /* of lm_serve(); 0: answers are judged in one forward */
	int json;
};

/** Answer all, up to @batch at a time: one forward holds the next token of each request
 *  that is being answered and the whole prompt of each that begins. */
void lm_serve(struct lm_runner *runner, struct lm_request *requests, size_t count,
              size_t batch);
/** A newline and the bytes of @text as tokens, malloc'ed; stops if the vocabulary lacks
 *  one. */
uint32_t *lm_tokens(const struct lm_model *model, const char *text, size_t bytes,
                    size_t *count_out);
/** "1,2,3". */
uint32_t *lm_tokens_parse(const struct lm_model *model, const char *text,
                          size_t *count_out);

/** Tokens a second over batch sizes. */
void lm_bench(const struct lm_model *model, struct lm_experts *experts,
              const struct lm_score_options *options);

/* ---- score.c ---- */

void lm_score_tasks(const struct lm_model *model, struct lm_experts *experts,
                    const struct lm_score_options *options);
void lm_score_loss(const struct lm_model *model, struct lm_experts *experts,
                   const struct lm_score_options *options);

/* ---- compare.c ---- */

struct lm_text {
	uint32_t *ids;
	size_t count;
};

/** Two backends over one text. */
void lm_compare(const struct lm_model *model, struct lm_experts *const *pair,
                const struct lm_text *text, int json);
/** Against a file of "input_bytes", "logits", "layers.N.moe_out". 1: the logits are
 * within what rounding may do; 0: not. */
int lm_check_logits(const struct lm_model *model, struct lm_experts *experts,
                    const char *path, int json);

#endif
