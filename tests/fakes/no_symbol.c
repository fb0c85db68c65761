/* SPDX-License-Identifier: MIT */
/* A normal library: nothing of moek in it. */
int fake_no_symbol(void);

__attribute__((visibility("default"))) int fake_no_symbol(void)
{
	return 1;
}
