/* SPDX-License-Identifier: MIT */
#ifndef MOEK_TOOLS_DOCTOR_H
#define MOEK_TOOLS_DOCTOR_H

/** reasons.c: the cause that goes with the name of a rule, and how to mend it; "" when
 *  there is none. */
const char *reason_of(const char *rule, const char **fix_out);

#endif
