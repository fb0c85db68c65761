/* SPDX-License-Identifier: MIT */
#include <moek/moek.h>

int main(void)
{
	return 0;
}
