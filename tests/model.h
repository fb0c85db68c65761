/* SPDX-License-Identifier: MIT */
/* For tests of codecs: small models made on the fly, and experts taken out of them. */
#ifndef MOEK_TESTS_MODEL_H
#define MOEK_TESTS_MODEL_H

#include "kit.h"

#include <moek/moek.h>

/** One expert of one layer, with the memory that it may lie in. */
struct taken {
	struct moek_source source;
	struct moek_expert expert;
	void *scratch;
};

/** Expert @expert of layer @layer; drop() it in any case. */
int32_t take(struct moek_checkpoint *checkpoint, uint64_t layer, uint64_t expert,
             struct taken *taken, struct moek_error *error_out);
void drop(struct taken *taken);
struct moek_checkpoint *open_ok(const char *path);

/** Warnings and errors of a registry: how many, and the last. */
struct heard {
	unsigned warnings;
	char last[512];
};
/** Takes both experts of layer 0 of the folder, and hears what is said of them. */
void take_all_heard(struct heard *heard_out);

/** Weight at row, column of a canonical matrix. */
float weight_at(const struct moek_matrix *m, uint64_t row, uint64_t column);
/** Row @row is @want, to the bit. */
void expect_row(const struct moek_matrix *m, uint64_t row, const float *want);

/** The scratch folder of the running test, made by set_up(). */
extern const char *folder;
void set_up(void);

/** config.json of a model of two experts of which one is chosen. @more is further JSON,
 *  or "". */
void write_config(const char *type, unsigned hidden, unsigned intermediate,
                  const char *more);
void add_sized(struct kit_file *file, const char *name, const char *dtype,
               const void *data, unsigned rank, unsigned a, unsigned b, unsigned c,
               unsigned d);
/** As model.safetensors of the folder. */
void save(struct kit_file *file);
int32_t open_here(struct moek_error *error_out);

/** The folder does not open; the error has all the words of @says (NULL-ended). */
void expect_error(int32_t status, const char *const *says);
#define EXPECT_ERROR(status, ...)                                                      \
	expect_error(status, (const char *const[]){ __VA_ARGS__, NULL })

#endif
