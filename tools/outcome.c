/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/outcome.h"

#include <stdio.h>

int outcome_is_wrong(const struct outcome *outcome)
{
	return outcome->outputs.wrong > 0 || outcome->routing.wrong > 0 ||
	       outcome->not_finite > 0 || outcome->shadow.rows_over > 0 ||
	       (outcome->wants_shadow && outcome->shadow.compared == 0);
}

void outcome_print_heading(int compared)
{
	if (compared)
		printf("%-10s %-18s %6s  %11s  %10s  %6s  %-20s %10s\n", "layer",
		       "backend", "tokens", "worst error", "allowance", "share",
		       "routing", "time");
	else
		printf("%-10s %-18s %6s  %12s  %10s  %10s\n", "layer", "backend",
		       "tokens", "output norm", "time", "tokens/s");
}

static void describe_routing(const struct outcome *outcome, char *text, size_t bytes)
{
	const struct routing *routing = &outcome->routing;

	if (!outcome->routing_known)
		snprintf(text, bytes, "not in the file");
	else if (routing->wrong > 0)
		snprintf(text, bytes, "%llu of %llu differ",
		         (unsigned long long)routing->wrong,
		         (unsigned long long)routing->tokens);
	else if (routing->ties > 0)
		snprintf(text, bytes, "equal but %llu tie%s",
		         (unsigned long long)routing->ties,
		         routing->ties == 1 ? "" : "s");
	else
		snprintf(text, bytes, "equal, %.0e off", routing->weight_error);
}

/** What exactly is wrong, a line each. */
static void print_wrong(const struct outcome *outcome)
{
	const struct comparison *outputs = &outcome->outputs;
	const struct routing *routing = &outcome->routing;

	if (outputs->wrong > 0)
		printf("  %s: %llu of %llu outputs are wrong; "
		       "the worst is moe_out[%llu][%llu]: "
		       "%.9g, expected %.9g, error %.3g, allowance %.3g\n",
		       outcome->layer, (unsigned long long)outputs->wrong,
		       (unsigned long long)outcome->elements,
		       (unsigned long long)outputs->row,
		       (unsigned long long)outputs->column, outputs->got,
		       outputs->expected, outputs->error, outputs->allowance);
	if (routing->wrong > 0)
		printf("  %s: routing differs for %llu of %llu tokens, "
		       "first for token %llu; "
		       "largest weight error %.3g, allowance 1e-06\n",
		       outcome->layer, (unsigned long long)routing->wrong,
		       (unsigned long long)routing->tokens,
		       (unsigned long long)routing->wrong_token, routing->weight_error);
	if (outcome->not_finite > 0)
		printf("  %s: %llu of %llu outputs are not finite\n", outcome->layer,
		       (unsigned long long)outcome->not_finite,
		       (unsigned long long)outcome->elements);
}

static void print_shadow(const struct outcome *outcome)
{
	const struct moek_shadow *shadow = &outcome->shadow;

	if (shadow->compared > 0)
		printf("  %s: shadow: %llu of %llu forwards compared with %s; %llu of "
		       "%llu rows over, the worst error is %.1f%% of its allowance\n",
		       outcome->layer, (unsigned long long)shadow->compared,
		       (unsigned long long)shadow->forwards, shadow->reference,
		       (unsigned long long)shadow->rows_over,
		       (unsigned long long)shadow->rows, 100 * shadow->worst);
	else if (outcome->wants_shadow)
		printf("  %s: shadow: nothing was compared\n", outcome->layer);
}

void outcome_print(const struct outcome *outcome)
{
	char routing[64], time[32];

	snprintf(time, sizeof(time), "%.2f ms", outcome->seconds * 1e3);
	printf("%-10s %-18s %6llu  ", outcome->layer, outcome->backend,
	       (unsigned long long)outcome->tokens);
	if (outcome->compared) {
		describe_routing(outcome, routing, sizeof(routing));
		printf("%11.2e  %10.2e  %5.1f%%  %-20s %10s\n", outcome->outputs.error,
		       outcome->outputs.allowance, 100 * outcome->outputs.share,
		       routing, time);
	} else {
		printf("%12.6g  %10s  %10.0f\n", outcome->norm, time,
		       (double)outcome->tokens / outcome->seconds);
	}
	print_wrong(outcome);
	print_shadow(outcome);
}

static void write_outputs(struct writer *writer, const struct comparison *outputs)
{
	writer_open(writer, "worst", '{');
	writer_number(writer, "row", outputs->row);
	writer_number(writer, "column", outputs->column);
	writer_real(writer, "got", outputs->got);
	writer_real(writer, "expected", outputs->expected);
	writer_real(writer, "error", outputs->error);
	writer_real(writer, "allowance", outputs->allowance);
	writer_real(writer, "share", outputs->share);
	writer_close(writer, '}');
	writer_number(writer, "wrong_outputs", outputs->wrong);
}

static void write_shadow(struct writer *writer, const struct moek_shadow *shadow)
{
	writer_open(writer, "shadow", '{');
	writer_string(writer, "reference", shadow->reference);
	writer_number(writer, "every", shadow->every);
	writer_number(writer, "forwards", shadow->forwards);
	writer_number(writer, "compared", shadow->compared);
	writer_number(writer, "skipped", shadow->skipped);
	writer_number(writer, "rows", shadow->rows);
	writer_number(writer, "rows_over", shadow->rows_over);
	writer_real(writer, "worst", shadow->worst);
	writer_close(writer, '}');
}

static void write_routing(struct writer *writer, const struct routing *routing)
{
	writer_open(writer, "routing", '{');
	writer_number(writer, "tokens", routing->tokens);
	writer_number(writer, "ties", routing->ties);
	writer_number(writer, "wrong", routing->wrong);
	writer_real(writer, "weight_error", routing->weight_error);
	writer_close(writer, '}');
}

void outcome_write(struct writer *writer, const struct outcome *outcome)
{
	writer_open(writer, NULL, '{');
	writer_string(writer, "layer", outcome->layer);
	writer_string(writer, "backend", outcome->backend);
	writer_number(writer, "tokens", outcome->tokens);
	writer_real(writer, "seconds", outcome->seconds);
	writer_number(writer, "weight_bytes", outcome->weight_bytes);
	writer_number(writer, "workspace_bytes", outcome->workspace_bytes);
	if (outcome->compared) {
		write_outputs(writer, &outcome->outputs);
		if (outcome->routing_known)
			write_routing(writer, &outcome->routing);
	} else {
		writer_real(writer, "norm", outcome->norm);
		writer_number(writer, "not_finite", outcome->not_finite);
	}
	if (outcome->shadow.reference != NULL)
		write_shadow(writer, &outcome->shadow);
	writer_bool(writer, "agrees", !outcome_is_wrong(outcome));
	writer_close(writer, '}');
}
