/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct name {
	int64_t value;
	const char *text;
};

static const struct name statuses[] = {
	{ MOEK_OK, "ok" },
	{ MOEK_BAD_ARGUMENT, "bad_argument" },
	{ MOEK_BUSY, "busy" },
	{ MOEK_REFUSED, "refused" },
	{ MOEK_BAD_CONFIG, "bad_config" },
	{ MOEK_BAD_FILE, "bad_file" },
	{ MOEK_NO_MEMORY, "no_memory" },
	{ MOEK_DEVICE, "device" },
	{ MOEK_PLUGIN, "plugin" },
	{ 0, NULL },
};

static const struct name types[] = {
	{ MOEK_F32, "fp32" }, { MOEK_F16, "fp16" },         { MOEK_BF16, "bf16" },
	{ MOEK_F8_E4M3, "e4m3" }, { MOEK_E8M0, "e8m0" },    { MOEK_U8, "u8" },
	{ MOEK_I32, "i32" },  { MOEK_INT4, "int4" },        { MOEK_MXFP4, "mxfp4" },
	{ MOEK_INT8, "int8" }, { 0, NULL },
};

static const struct name activation_functions[] = {
	{ MOEK_SILU, "silu" },
	{ MOEK_GELU, "gelu" },
	{ MOEK_GELU_TANH, "gelu_tanh" },
	{ MOEK_RELU2, "relu2" },
	{ MOEK_SWIGLU_OAI, "swiglu_oai" },
	{ MOEK_SWIGLU_STEP, "swiglu_step" },
	{ MOEK_SITU, "situ" },
	{ 0, NULL },
};

static const struct name activation_schemes[] = {
	{ MOEK_A16, "a16" },
	{ MOEK_A8_FP8_STATIC, "fp8_static" },
	{ MOEK_A8_INT8, "int8" },
	{ MOEK_A4_MXFP4_EVEN, "mxfp4_even" },
	{ MOEK_A4_MXFP4_ROUND_UP, "mxfp4_round_up" },
	{ 0, NULL },
};

static const struct name classes[] = {
	{ MOEK_NATIVE, "native" },
	{ MOEK_GENERIC, "generic" },
	{ MOEK_EMULATION, "emulation" },
	{ 0, NULL },
};

static const struct name device_kinds[] = {
	{ MOEK_HOST, "host" },
	{ MOEK_HIP, "hip" },
	{ MOEK_CUDA, "cuda" },
	{ 0, NULL },
};

static const struct name states[] = {
	{ MOEK_STATE_CHOSEN, "chosen" },     { MOEK_STATE_READY, "ready" },
	{ MOEK_STATE_REFUSED, "refused" },   { MOEK_STATE_UNUSABLE, "unusable" },
	{ MOEK_STATE_ABSENT, "absent" },     { MOEK_STATE_MISSING, "missing" },
	{ MOEK_STATE_DISABLED, "disabled" }, { MOEK_STATE_BROKEN, "broken" },
	{ MOEK_STATE_FAILED, "failed" },     { MOEK_STATE_UNOPENED, "unopened" },
	{ MOEK_STATE_NOT_PLUGIN, "not_a_plugin" }, { 0, NULL },
};

/* By position: bit 0 first. */
static const char *const bits[] = {
	"zero_points",   "column_groups",   "bias",       "limit",
	"alpha_beta",    "not_gated",       "expert_map", "weight_on_input",
	"row_stride",    "deterministic",   "capture",    "lora",
	"partial_sum",
};

/** How a number that a rule speaks of is to be read. */
enum value_kind {
	VALUE_NONE,   /* the rule is a fact by itself: no number */
	VALUE_NUMBER,
	VALUE_TYPE,
	VALUE_ACTIVATION,
	VALUE_ACTIVATIONS,
	VALUE_BIT,
	VALUE_YES_NO,
	VALUE_ARCH    /* found is the device's arch */
};

static const struct rule {
	uint32_t rule;
	const char *name;
	enum value_kind value;
	const char *plain; /* what was found, when there is no number */
} rules[] = {
	{ MOEK_RULE_DISABLED, "disabled", VALUE_NONE, "switched off" },
	{ MOEK_RULE_EXCLUDED, "excluded", VALUE_NONE, "excluded by the request" },
	{ MOEK_RULE_UNLISTED, "unlisted", VALUE_NONE,
	  "not in [priority], and unlisted = ignore" },
	{ MOEK_RULE_SHADOWED, "shadowed", VALUE_NONE,
	  "an earlier directory has this name" },
	{ MOEK_RULE_NOT_INSTALLED, "not_installed", VALUE_NONE,
	  "no file of this name" },
	{ MOEK_RULE_NOT_REQUIRED, "not_required", VALUE_NONE,
	  "the request requires another" },
	{ MOEK_RULE_OPTION, "option", VALUE_NONE, "an option is unknown or bad" },
	{ MOEK_RULE_NOT_REGULAR, "not_regular", VALUE_NONE, "not a regular file" },
	{ MOEK_RULE_WRITABLE, "writable", VALUE_NONE, "others can write the file" },
	{ MOEK_RULE_ABI_MAJOR, "abi_major", VALUE_NUMBER, NULL },
	{ MOEK_RULE_MACHINE, "machine", VALUE_NONE, "built for another machine" },
	{ MOEK_RULE_NOT_PLUGIN, "not_plugin", VALUE_NONE, "not a plugin" },
	{ MOEK_RULE_NOTE_DISAGREES, "note_disagrees", VALUE_NONE,
	  "note and descriptor disagree" },
	{ MOEK_RULE_DAMAGED, "damaged", VALUE_NONE, "the file is damaged" },
	{ MOEK_RULE_NOTE, "note", VALUE_NONE, "its note is malformed" },
	{ MOEK_RULE_ABI_MINOR, "abi_minor", VALUE_NUMBER, NULL },
	{ MOEK_RULE_ABI_TABLE, "abi_table", VALUE_NUMBER, NULL },
	{ MOEK_RULE_ABI_SLOT, "abi_slot", VALUE_NONE, "a mandatory slot is NULL" },
	{ MOEK_RULE_ABI_NAME, "abi_name", VALUE_NONE, "its name is not the file's" },
	{ MOEK_RULE_ISA, "isa", VALUE_NONE, "the CPU lacks it" },
	{ MOEK_RULE_PROBE_CRASH, "probe_crash", VALUE_NONE, "it crashed" },
	{ MOEK_RULE_PROBE_TIME, "probe_time", VALUE_NONE, "it hangs" },
	{ MOEK_RULE_PROBE_HELPER, "probe_helper", VALUE_NONE,
	  "moek-probe does not run" },
	{ MOEK_RULE_PROBE_EXIT, "probe_exit", VALUE_NONE, "it ends the process" },
	{ MOEK_RULE_PROBE_NOISE, "probe_noise", VALUE_NONE,
	  "it writes to standard output" },
	{ MOEK_RULE_SIDE_EFFECT, "side_effect", VALUE_NONE, "it changes the process" },
	{ MOEK_RULE_GOLDEN, "golden", VALUE_NONE, "its golden test failed" },
	{ MOEK_RULE_LIBRARY, "library", VALUE_NONE, "a library is missing" },
	{ MOEK_RULE_TWO_HELPERS, "two_helpers", VALUE_NONE,
	  "another library of the same name came first" },
	{ MOEK_RULE_SYMBOL, "symbol", VALUE_NONE, "no moek_plugin_v1 in this file" },
	{ MOEK_RULE_SYMBOL_FOREIGN, "symbol_foreign", VALUE_NONE,
	  "moek_plugin_v1 belongs to a dependency" },
	{ MOEK_RULE_LOAD, "load", VALUE_NONE, "the loader refused it" },
	{ MOEK_RULE_OPEN, "open", VALUE_NONE, "its open() failed" },
	{ MOEK_RULE_DEVICE_KIND, "device_kind", VALUE_NONE, "no such device here" },
	{ MOEK_RULE_DEVICE_DRIVER, "device_driver", VALUE_NONE,
	  "its runtime is missing" },
	{ MOEK_RULE_DEVICE_PERMISSION, "device_permission", VALUE_NONE,
	  "permission denied" },
	{ MOEK_RULE_DEVICE_VERSION, "device_version", VALUE_NONE, "driver too old" },
	{ MOEK_RULE_DEVICE_ARCH, "device_arch", VALUE_ARCH, NULL },
	{ MOEK_RULE_WEIGHT, "weight", VALUE_TYPE, NULL },
	{ MOEK_RULE_GROUP_SIZE, "group_size", VALUE_NUMBER, NULL },
	{ MOEK_RULE_ZERO_POINTS, "zero_points", VALUE_YES_NO, NULL },
	{ MOEK_RULE_ACTIVATION, "activation", VALUE_ACTIVATION, NULL },
	{ MOEK_RULE_LIMIT, "limit", VALUE_NONE, "a clamp limit" },
	{ MOEK_RULE_INPUT_TYPE, "input_type", VALUE_TYPE, NULL },
	{ MOEK_RULE_HIDDEN, "hidden", VALUE_NUMBER, NULL },
	{ MOEK_RULE_TOP_K, "top_k", VALUE_NUMBER, NULL },
	{ MOEK_RULE_EXPERT_MAP, "expert_map", VALUE_YES_NO, NULL },
	{ MOEK_RULE_LORA, "lora", VALUE_YES_NO, NULL },
	{ MOEK_RULE_COLUMN_GROUPS, "column_groups", VALUE_YES_NO, NULL },
	{ MOEK_RULE_UNKNOWN_BIT, "unknown_bit", VALUE_BIT, NULL },
	{ MOEK_RULE_UNKNOWN_VALUE, "unknown_value", VALUE_NUMBER, NULL },
	{ MOEK_RULE_ACTIVATIONS, "activations", VALUE_ACTIVATIONS, NULL },
	{ MOEK_RULE_SCALE, "scale", VALUE_TYPE, NULL },
	{ MOEK_RULE_BIAS, "bias", VALUE_YES_NO, NULL },
	{ MOEK_RULE_EXPERTS, "experts", VALUE_NUMBER, NULL },
	{ MOEK_RULE_ALIGNMENT, "alignment", VALUE_NUMBER, NULL },
	{ MOEK_RULE_WEIGHT_ON_INPUT, "weight_on_input", VALUE_YES_NO, NULL },
	{ MOEK_RULE_DETERMINISTIC, "deterministic", VALUE_YES_NO, NULL },
	{ MOEK_RULE_INTERMEDIATE, "intermediate", VALUE_NUMBER, NULL },
	{ MOEK_RULE_GATED, "gated", VALUE_YES_NO, NULL },
	{ MOEK_RULE_ALPHA_BETA, "alpha_beta", VALUE_NONE, "its own alpha or beta" },
	{ MOEK_RULE_OUTPUT_TYPE, "output_type", VALUE_TYPE, NULL },
	{ MOEK_RULE_ROW_STRIDE, "row_stride", VALUE_YES_NO, NULL },
	{ MOEK_RULE_CAPTURE, "capture", VALUE_YES_NO, NULL },
	{ MOEK_RULE_PARTIAL_SUM, "partial_sum", VALUE_YES_NO, NULL },
	{ MOEK_RULE_SHARDS, "shards", VALUE_NUMBER, NULL },
	{ MOEK_RULE_TOKENS, "tokens", VALUE_NUMBER, NULL },
	{ MOEK_RULE_INDEX_RANGE, "index_range", VALUE_NUMBER, NULL },
	{ MOEK_RULE_DEPENDENCY, "dependency", VALUE_NONE, "not installed" },
	{ MOEK_RULE_INVALID, "invalid", VALUE_NUMBER, NULL },
	{ MOEK_RULE_EXCEPTION, "exception", VALUE_NONE, "an exception in the plugin" },
	{ MOEK_RULE_WORKSPACE, "workspace", VALUE_NUMBER, NULL },
	{ MOEK_RULE_MEMORY, "memory", VALUE_NONE, "out of memory" },
	{ MOEK_RULE_CREATE, "create", VALUE_NONE, "create() failed" },
	{ MOEK_RULE_OUTRANKED, "outranked", VALUE_NONE, "outranked" },
};

int32_t moek_fail(struct moek_error *error_out, int32_t status, uint32_t rule,
                  const char *format, ...)
{
	va_list arguments;

	if (error_out == NULL)
		return status;
	memset(error_out, 0, offsetof(struct moek_error, text));
	error_out->struct_size = (uint32_t)sizeof(*error_out);
	error_out->status = status;
	error_out->rule = rule;
	va_start(arguments, format);
	vsnprintf(error_out->text, sizeof(error_out->text), format, arguments);
	va_end(arguments);
	return status;
}

int32_t moek_fail_memory(struct moek_error *error_out, const char *what)
{
	return moek_fail(error_out, MOEK_NO_MEMORY, MOEK_RULE_MEMORY,
	                 "out of memory for the %s", what);
}

const char *moek_version(void)
{
	return PACKAGE_VERSION;
}

void moek_free(void *memory)
{
	free(memory);
}

static const char *name_of(const struct name *names, int64_t value)
{
	for (; names->text != NULL; names++)
		if (names->value == value)
			return names->text;
	return "?";
}

static const struct name *value_of(const struct name *names, const char *text)
{
	for (; names->text != NULL; names++)
		if (strcmp(names->text, text) == 0)
			return names;
	return NULL;
}

const char *moek_status_name(int32_t status)
{
	return name_of(statuses, status);
}

const char *moek_type_name(uint32_t type)
{
	return name_of(types, type);
}

const char *moek_activation_name(uint32_t activation)
{
	return name_of(activation_functions, activation);
}

const char *moek_activations_name(uint32_t activations)
{
	return name_of(activation_schemes, activations);
}

const char *moek_state_name(uint32_t state)
{
	return name_of(states, state);
}

const char *moek_class_name(uint32_t rank_class)
{
	return name_of(classes, rank_class);
}

const char *moek_device_kind_name(uint32_t kind)
{
	return name_of(device_kinds, kind);
}

uint32_t moek_type_parse(const char *name)
{
	const struct name *found = value_of(types, name);

	return found != NULL ? (uint32_t)found->value : 0;
}

uint32_t moek_activation_parse(const char *name)
{
	const struct name *found = value_of(activation_functions, name);

	return found != NULL ? (uint32_t)found->value : 0;
}

int moek_activations_parse(const char *name, uint32_t *activations_out)
{
	const struct name *found = value_of(activation_schemes, name);

	if (found == NULL)
		return 0;
	*activations_out = (uint32_t)found->value;
	return 1;
}

const char *moek_bit_name(uint32_t bit)
{
	return bit < sizeof(bits) / sizeof(bits[0]) ? bits[bit] : NULL;
}

uint64_t moek_type_bytes(uint32_t type)
{
	switch (type) {
	case MOEK_F32:
	case MOEK_I32:
		return 4;
	case MOEK_F16:
	case MOEK_BF16:
		return 2;
	case MOEK_F8_E4M3:
	case MOEK_E8M0:
	case MOEK_U8:
	case MOEK_INT8:
		return 1;
	default:
		return 0;
	}
}

static const struct rule *rule_of(uint32_t number)
{
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (rules[i].rule == number)
			return &rules[i];
	return NULL;
}

const char *moek_rule_name(uint32_t rule)
{
	const struct rule *found = rule_of(rule);

	return found != NULL ? found->name : "?";
}

static void value_text(enum value_kind kind, uint64_t value, char *text_out, size_t bytes)
{
	const char *name = NULL;

	switch (kind) {
	case VALUE_TYPE:
		name = moek_type_name((uint32_t)value);
		break;
	case VALUE_ACTIVATION:
		name = moek_activation_name((uint32_t)value);
		break;
	case VALUE_ACTIVATIONS:
		name = moek_activations_name((uint32_t)value);
		break;
	case VALUE_BIT:
		name = value < 64 ? moek_bit_name((uint32_t)value) : NULL;
		break;
	case VALUE_YES_NO:
		name = value != 0 ? "yes" : "no";
		break;
	case VALUE_NONE:
	case VALUE_NUMBER:
	case VALUE_ARCH:
		break;
	}
	if (name != NULL && strcmp(name, "?") != 0)
		snprintf(text_out, bytes, "%s", name);
	else
		snprintf(text_out, bytes, "%llu", (unsigned long long)value);
}

void moek_verdict_found(const struct moek_verdict *verdict, const struct moek_device *device,
                        char *text_out, size_t bytes)
{
	const struct rule *rule = rule_of(verdict->rule);
	const char *projection = verdict->projection == MOEK_GATE_UP ? "gate_up "
	                         : verdict->projection == MOEK_DOWN  ? "down "
	                                                             : "";
	char value[64];

	if (verdict->rule == MOEK_RULE_NONE) {
		snprintf(text_out, bytes, "%s", "");
	} else if (rule == NULL) {
		snprintf(text_out, bytes, "rule %u, %llu", verdict->rule,
		         (unsigned long long)verdict->found);
	} else if (rule->value == VALUE_ARCH) {
		snprintf(text_out, bytes, "device %s",
		         device != NULL && device->arch[0] != '\0' ? device->arch : "?");
	} else if (rule->value == VALUE_NONE) {
		/* a note says it better than the general words */
		snprintf(text_out, bytes, "%s%s", projection,
		         verdict->note[0] != '\0' ? verdict->note : rule->plain);
	} else {
		value_text(rule->value, verdict->found, value, sizeof(value));
		snprintf(text_out, bytes, "%s%s %s", projection,
		         rule->value == VALUE_BIT ? "does not understand" : rule->name,
		         value);
	}
}

void moek_verdict_accepted(const struct moek_verdict *verdict, char *text_out, size_t bytes)
{
	const struct rule *rule = rule_of(verdict->rule);
	enum value_kind kind = rule != NULL ? rule->value : VALUE_NUMBER;
	const char *before = "";
	char value[64];
	size_t used = 0;

	text_out[0] = '\0';
	switch (verdict->accepts) {
	case MOEK_ACCEPTS_MULTIPLE:
		before = "a multiple of ";
		break;
	case MOEK_ACCEPTS_AT_MOST:
		before = "at most ";
		break;
	case MOEK_ACCEPTS_AT_LEAST:
		before = "at least ";
		break;
	case MOEK_ACCEPTS_VALUES:
		for (uint32_t i = 0; i < verdict->count && i < 6 && used < bytes; i++) {
			value_text(kind, verdict->accepted[i], value, sizeof(value));
			used += (size_t)snprintf(text_out + used, bytes - used, "%s%s",
			                         i == 0                    ? ""
			                         : i + 1 == verdict->count ? " or "
			                                                   : ", ",
			                         value);
		}
		break;
	default:
		break;
	}
	if (before[0] != '\0') {
		value_text(kind, verdict->accepted[0], value, sizeof(value));
		used = (size_t)snprintf(text_out, bytes, "%s%s", before, value);
	}
	if (verdict->note[0] != '\0' && (rule == NULL || rule->value != VALUE_NONE) &&
	    used < bytes)
		snprintf(text_out + used, bytes - used, "%s%s", used != 0 ? "; " : "",
		         verdict->note);
}

uint64_t moek_multiply(uint64_t a, uint64_t b, int *overflow)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product)) {
		*overflow = 1;
		return 0;
	}
	return product;
}

uint64_t moek_add(uint64_t a, uint64_t b, int *overflow)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum)) {
		*overflow = 1;
		return 0;
	}
	return sum;
}
