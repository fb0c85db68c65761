/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "core/pattern.h"
#include "core/status.h"

#include <fnmatch.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#define PATTERN_MOST 512u /* bytes of a pattern as POSIX reads it */

int moek_glob_fits(const char *glob, const char *text)
{
	return strlen(glob) < PATTERN_MOST && fnmatch(glob, text, 0) == 0;
}

/** What POSIX calls a class of Python's: "[0-9]" for 'd'; NULL: no class. */
static const char *class_of(char letter)
{
	static const char *const classes[] = { "d[0-9]",        "D[^0-9]",
		                               "w[A-Za-z0-9_]", "W[^A-Za-z0-9_]",
		                               "s[[:space:]]",  "S[^[:space:]]" };

	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
		if (classes[i][0] == letter)
			return classes[i] + 1;
	return NULL;
}

/** 1: the character begins a repeat of what stands before it. */
static int repeats(char letter)
{
	return letter == '*' || letter == '+' || letter == '?' || letter == '}';
}

/**
 * The same pattern for POSIX, anchored at the start. NULL, or what of it POSIX lacks.
 * Groups that do not capture become groups that do: nobody asks for them.
 */
static const char *translate(const char *pattern, char *to, size_t room)
{
	size_t used = (size_t)snprintf(to, room, "^(");
	int in_set = 0;

	for (const char *at = pattern; *at != '\0'; at++) {
		const char *piece = NULL;
		size_t bytes = 1;

		if (used + 16 > room)
			return "it is too long";
		if (*at == '\\') {
			at++;
			piece = in_set ? NULL : class_of(*at);
			if (piece == NULL &&
			    strchr(in_set ? "]^-\\dDwWsS" : "bBAZ0123456789", *at) !=
			            NULL)
				return "an escape in it has no like in POSIX";
			if (piece == NULL && !in_set)
				to[used++] = '\\';
		} else if (in_set) {
			in_set = *at != ']' || at[-1] == '[' ||
			         (at[-1] == '^' && at[-2] == '[');
		} else if (*at == '[') {
			in_set = 1;
		} else if (*at == '(' && at[1] == '?') {
			if (at[2] != ':')
				return "look-around and flags have no like in POSIX";
			piece = "(";
			at += 2;
		} else if (repeats(*at) && (at[1] == '?' || at[1] == '+')) {
			return "lazy and possessive repeats have no like in POSIX";
		}
		if (piece != NULL)
			bytes = strlen(piece);
		memcpy(to + used, piece != NULL ? piece : at, bytes);
		used += bytes;
	}
	snprintf(to + used, room - used, ")");
	return NULL;
}

int32_t moek_pattern_fits(const char *pattern, const char *text, const char *where,
                          int *fits_out, struct moek_error *error_out)
{
	char posix[PATTERN_MOST];
	const char *wrong = translate(pattern, posix, sizeof(posix));
	regex_t compiled;

	if (wrong == NULL && regcomp(&compiled, posix, REG_EXTENDED | REG_NOSUB) != 0)
		wrong = "it is no regular expression";
	if (wrong != NULL)
		return moek_fail(error_out, MOEK_REFUSED, 0,
		                 "%s: pattern \"%.200s\" is not followed: %s", where,
		                 pattern, wrong);
	*fits_out = regexec(&compiled, text, 0, NULL, 0) == 0;
	regfree(&compiled);
	return MOEK_OK;
}
