/* SPDX-License-Identifier: MIT */
/* A GPU plugin, unmodified, through its table: what the tests of all of them share. A
 * card as the operating system shows it, a runtime, random layers, a reference in
 * double. */
#ifndef MOEK_TESTS_GPU_HARNESS_H
#define MOEK_TESTS_GPU_HARNESS_H

#include <moek/experts.h>

/* ---- the plugin ---- */

/* what the plugin is told beside sysfs, kfd and runtime */
struct harness_option {
	const char *key, *value; /* NULL key: none */
};
extern struct harness_option harness_options[2];
extern const struct moek_host harness_host;
extern char last_log[512];

extern const struct moek_plugin *plugin;
extern void *handle;
extern struct moek_device device;

/* NULL: no such file */
const struct moek_plugin *load_plugin(const char *name);
/* has the file code for it, and can this build run fibers? */
int can_run(const struct moek_plugin *file, const char *arch);
/* on one card; gfx_version as KFD writes it: 110000 */
void open_plugin(const char *name, unsigned int gfx_version);
void close_plugin(void);

/* first refusal in the order in which the core asks, or 0; *no is what it said */
uint32_t ask(const struct moek_experts *experts, const struct moek_problem *problem,
             struct moek_verdict *no);

/* ---- a layer, by hand ---- */

extern uint32_t seed;
uint32_t random_bits(void);
float random_unit(void); /* -1 .. 1 */

uint16_t to_type(float value, uint32_t type);
float from_type(uint16_t bits, uint32_t type);
double value_at(const void *values, uint64_t i, uint32_t type);
uint64_t type_bytes(uint32_t type);
double machine_eps(uint32_t type);

/* the canonical form of one projection and its values */
struct matrix {
	struct moek_matrix canonical;
	unsigned char *codes, *zeros, *scales;
	float *bias;
	double *values; /* [rows][columns] */
};
void make_matrix(const struct moek_scheme *scheme, uint64_t rows, uint64_t columns,
                 struct matrix *m);
void free_matrix(struct matrix *m);

double reference_activation(const struct moek_problem *p, double g, double u);
/* sum of products, and of their magnitudes */
double dot(const double *row, const double *x, uint64_t count, double *magnitude);

/* everything of one run */
struct bench {
	struct moek_problem problem;
	uint64_t tokens;
	struct matrix (*experts)[3]; /* gate, up, down */
	void *input;
	int32_t *ids;
	float *weights;
	int32_t *map;             /* or NULL */
	double *want, *magnitude; /* [tokens][hidden] */
	/* NULL, or done to the prepared weights before the forward */
	void (*tamper)(const struct bench *b, void *weights);
};
int local_expert(const struct bench *b, int32_t id);
void make_bench(const struct moek_problem *problem, uint64_t tokens, int with_map,
                struct bench *b);
void free_bench(struct bench *b);
/* want and magnitude, for 16-bit activations */
void make_reference(struct bench *b);

/* what came of it, on the host */
struct run {
	void *output;
	void *buffers[MOEK_MAX_BUFFERS]; /* scratch, as it was left */
	struct moek_buffer shapes[MOEK_MAX_BUFFERS];
	uint32_t count;
};
/* scratch by its name */
const void *run_buffer(const struct run *run, const char *name);
void run_bench(const struct moek_experts *experts, const struct bench *b,
               uint64_t planned, struct run *run_out);
void free_run(struct run *run);

/* largest error as a share of the declared allowance; *l2_out: relative error of the
 * whole */
double worst_error(const struct moek_experts *experts, const struct bench *b,
                   const void *output, double *l2_out);

#endif
