/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/plain.h"

#include <string.h>

#define DIGITS_MOST 18 /* below 2^63 */
#define KEYS_MOST 16

static void skip_blanks(struct moek_plain *plain)
{
	while (plain->at < plain->end && (*plain->at == ' ' || *plain->at == '\n' ||
	                                  *plain->at == '\t' || *plain->at == '\r'))
		plain->at++;
}

int moek_plain_take(struct moek_plain *plain, char c)
{
	skip_blanks(plain);
	if (plain->at == plain->end || *plain->at != c)
		return 0;
	plain->at++;
	return 1;
}

int moek_plain_string(struct moek_plain *plain, struct moek_name *name_out)
{
	const char *first;

	if (!moek_plain_take(plain, '"'))
		return 0;
	first = plain->at;
	while (plain->at < plain->end && *plain->at != '"') {
		unsigned char c = (unsigned char)*plain->at++;

		if (c < 0x20 || c > 0x7e || c == '\\')
			return 0;
	}
	if (plain->at == plain->end)
		return 0;
	name_out->text = first;
	name_out->bytes = (size_t)(plain->at++ - first);
	return 1;
}

int moek_plain_number(struct moek_plain *plain, uint64_t *number_out)
{
	const char *first;
	uint64_t number = 0;

	skip_blanks(plain);
	first = plain->at;
	while (plain->at < plain->end && *plain->at >= '0' && *plain->at <= '9')
		number = number * 10 + (uint64_t)(*plain->at++ - '0');
	if (plain->at == first || plain->at - first > DIGITS_MOST ||
	    (*first == '0' && plain->at - first > 1))
		return 0;
	/* a fraction or an exponent is no comma or bracket: the caller stops there */
	*number_out = number;
	return 1;
}

int moek_plain_is_over(struct moek_plain *plain)
{
	skip_blanks(plain);
	return plain->at == plain->end;
}

int moek_plain_is(const struct moek_name *name, const char *text)
{
	return name->bytes == strlen(text) &&
	       memcmp(name->text, text, name->bytes) == 0;
}

static int is_new(const struct moek_name *keys, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (keys[i].bytes == keys[count].bytes &&
		    memcmp(keys[i].text, keys[count].text, keys[i].bytes) == 0)
			return 0;
	return 1;
}

int moek_plain_skip(struct moek_plain *plain, int numbers)
{
	struct moek_name keys[KEYS_MOST], value;
	uint64_t number;

	if (!moek_plain_take(plain, '{'))
		return 0;
	if (moek_plain_take(plain, '}'))
		return 1;
	for (size_t i = 0; i < KEYS_MOST; i++) {
		if (!moek_plain_string(plain, &keys[i]) || !is_new(keys, i) ||
		    !moek_plain_take(plain, ':'))
			return 0;
		if (!moek_plain_string(plain, &value) &&
		    !(numbers && moek_plain_number(plain, &number)))
			return 0;
		if (moek_plain_take(plain, '}'))
			return 1;
		if (!moek_plain_take(plain, ','))
			return 0;
	}
	return 0;
}
