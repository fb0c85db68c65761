/* SPDX-License-Identifier: MIT */
#ifndef MOEK_CORE_SAFETENSORS_H
#define MOEK_CORE_SAFETENSORS_H

#endif
