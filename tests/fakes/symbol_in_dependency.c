/* SPDX-License-Identifier: MIT */
/* Has no moek_plugin_v1, but is linked with good_host.so, which has one. */
int fake_symbol_in_dependency(void);

__attribute__((visibility("default"))) int fake_symbol_in_dependency(void)
{
	return 1;
}
