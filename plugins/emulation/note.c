/* SPDX-License-Identifier: MIT */
/* Apart from plugin.c, which the tests build into plugins of other names. */
#include <moek/experts.h>

MOEK_PLUGIN_NOTE("id=emulation\nversion=0.1.0\nclass=emulation\ndevices=host\n"
                 "formats=int4,int8,mxfp4,bf16,fp16,fp32\n");
