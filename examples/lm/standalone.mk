# SPDX-License-Identifier: MIT
# Builds moek-lm against an installed moek, which pkg-config knows: make -f standalone.mk
CFLAGS ?= -O3 -march=native
sources := $(wildcard *.c)
moek-lm: $(sources) lm.h
	$(CC) -std=gnu11 $(CFLAGS) -pthread -o $@ $(sources) \
		$$(pkg-config --cflags --libs moek) -lm
