/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/shadow.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/agree.h"
#include "core/choice.h"
#include "core/log.h"
#include "core/registry.h"
#include "core/status.h"

/** One line about @layer, its label and its backend before it. Takes no memory. */
static void warn(const struct moek_layer *layer, const char *what, const char *text)
{
	const char *label = layer->choice->label;

	moek_log_write(moek_registry_log(layer->choice->registry), MOEK_LOG_WARNING,
	               "%s%s%s: %s%s", label, label[0] != '\0' ? ", " : "",
	               layer->backend->name, what, text);
}

/** The same weights, as they are for the reference. */
static int32_t make_reference(const struct moek_layer *layer,
                              const struct moek_source *source,
                              struct moek_layer **reference_out,
                              struct moek_error *error_out)
{
	const struct moek_layer_options options = {
		.struct_size = MOEK_INIT(LAYER_OPTIONS), .expert_map = layer->map
	};
	struct moek_layer_request request = { .source = source,
		                              .options = &options,
		                              .is_reference = 1 };
	struct moek_problem problem = layer->problem;
	int another_may;
	int32_t status;

	problem.output_type = MOEK_F32;
	status = moek_choose_reference(moek_choice_registry(layer->choice), &problem,
	                               &request.choice, error_out);
	if (status != MOEK_OK)
		return status;
	return moek_layer_make(&request, reference_out, &another_may, error_out);
}

void moek_shadow_cast(struct moek_layer *layer, const struct moek_source *source)
{
	uint64_t every = moek_registry_shadow(moek_choice_registry(layer->choice));
	struct moek_shadowing *shadow;
	struct moek_error error;
	int32_t status;

	if (every == 0 || layer->backend->experts->rank_class == MOEK_EMULATION)
		return;
	shadow = calloc(1, sizeof(*shadow));
	status = shadow == NULL ? moek_fail_memory(&error, "shadow")
	                        : make_reference(layer, source, &shadow->layer, &error);
	if (status != MOEK_OK) {
		free(shadow);
		warn(layer, "has no shadow: ", error.text);
		return;
	}
	shadow->every = every;
	moek_choice_numerics(layer->choice, &shadow->numerics);
	layer->shadow = shadow;
}

void moek_shadow_end(struct moek_shadowing *shadow)
{
	if (shadow == NULL)
		return;
	moek_layer_destroy(shadow->layer);
	free(shadow);
}

int moek_shadow_fits(const struct moek_shadowing *shadow,
                     const struct moek_workspace *workspace)
{
	return workspace->shadow != NULL &&
	       workspace->shadow->bytes >= shadow->layer->plan.bytes &&
	       ((uintptr_t)workspace->shadow->memory &
	        (shadow->layer->plan.align - 1)) == 0;
}

static void tell(struct moek_layer *layer, const char *what, const char *text)
{
	if (!layer->shadow->is_told)
		warn(layer, what, text);
	layer->shadow->is_told = 1;
}

static void compare(struct moek_layer *layer, const struct moek_forward *forward,
                    const struct moek_wanted *wanted)
{
	struct moek_shadowing *shadow = layer->shadow;
	const struct moek_outputs outputs = { .problem = &layer->problem,
		                              .numerics = &shadow->numerics,
		                              .got = &forward->output,
		                              .wanted = wanted->values,
		                              .magnitudes = wanted->magnitudes };
	struct moek_agreement agreement;
	char text[256];

	moek_agree(&outputs, &agreement);
	/* written by whoever has the layer, read by anyone */
	shadow->compared++;
	shadow->rows += forward->output.rows;
	shadow->rows_over += agreement.rows_over;
	if (agreement.worst > shadow->worst)
		shadow->worst = agreement.worst;
	if (agreement.rows_over == 0)
		return;
	moek_agreement_text(&agreement, layer->problem.hidden,
	                    shadow->layer->backend->name, text, sizeof(text));
	tell(layer, "", text);
}

void moek_shadow_follow(struct moek_layer *layer, const struct moek_forward *forward)
{
	struct moek_shadowing *shadow = layer->shadow;
	struct moek_wanted wanted;
	struct moek_error error;
	int32_t status;

	if (shadow->forwards++ % shadow->every != 0)
		return;
	/* rows on a device are not computed yet, and not to be waited for */
	if (forward->input.space != 0) {
		shadow->skipped++;
		return;
	}
	status = moek_forward_reference(shadow->layer, forward->workspace->shadow,
	                                forward, &wanted, &error);
	if (status == MOEK_OK) {
		compare(layer, forward, &wanted);
		return;
	}
	shadow->skipped++;
	tell(layer, "its shadow failed: ", error.text);
}

int32_t moek_layer_shadow(const struct moek_layer *layer,
                          struct moek_shadow *shadow_out)
{
	struct moek_shadowing *shadow = layer->shadow;

	if (shadow_out->struct_size < MOEK_SHADOW_SIZE_1_0)
		return MOEK_BAD_ARGUMENT;
	if (shadow == NULL)
		return MOEK_REFUSED;
	shadow_out->reference = shadow->layer->backend->name;
	shadow_out->every = shadow->every;
	shadow_out->forwards = shadow->forwards;
	shadow_out->compared = shadow->compared;
	shadow_out->skipped = shadow->skipped;
	shadow_out->rows = shadow->rows;
	shadow_out->rows_over = shadow->rows_over;
	shadow_out->worst = shadow->worst;
	return MOEK_OK;
}
