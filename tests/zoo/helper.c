/* SPDX-License-Identifier: MIT */
/* What plugins of the zoo need. */
int zoo_helper(void);

__attribute__((visibility("default"))) int zoo_helper(void)
{
	return 1;
}
