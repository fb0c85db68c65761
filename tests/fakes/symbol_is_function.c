/* SPDX-License-Identifier: MIT */
/* The name is there, but it is code. */
int moek_plugin_v1(void);

__attribute__((visibility("default"))) int moek_plugin_v1(void)
{
	return 1;
}
