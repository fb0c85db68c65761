#!/bin/sh
# SPDX-License-Identifier: MIT
# What `make install` leaves is enough: a host and a plugin are built outside the tree with
# nothing but pkg-config's answers, and run.
: "${MOEK_TEST_SOURCE:?run by make check}" "${MOEK_TEST_BUILD:?}"
. "$MOEK_TEST_SOURCE/tap.sh"

# make's own variables would reach into the inner make
unset MAKEFLAGS MFLAGS MAKELEVEL
stage=$work/stage
models=$MOEK_TEST_SOURCE/fixtures/checkpoints
variable() { sed -n "s/^$1 = //p" "$MOEK_TEST_BUILD/Makefile"; }
cc=$(variable CC)
cflags=$(variable CFLAGS)
prefix=$(variable prefix)

exits 0 'make install DESTDIR= succeeds' make -C "$MOEK_TEST_BUILD" install DESTDIR="$stage"
root=$stage$prefix
for file in bin/moek lib/libmoek.so lib/moek/emulation.so libexec/moek/moek-probe include/moek/moek.h \
	include/moek/experts.h include/moek/problem.h include/moek/formats.h \
	lib/pkgconfig/moek.pc lib/pkgconfig/moek-plugin.pc share/man/man1/moek.1 \
	share/man/man3/libmoek.3 share/man/man5/moek.ini.5 share/man/man7/moek-plugin.7 \
	share/man/man7/moek-reasons.7 \
	share/bash-completion/completions/moek etc/moek/moek.ini; do
	check "$file is installed" [ -f "$root/$file" ]
done

asked() { PKG_CONFIG_PATH=$root/lib/pkgconfig pkg-config --define-variable=prefix="$root" "$@"; }
plugin_dir=$(asked --variable=plugindir moek-plugin)
check 'moek-plugin.pc gives the folder of plugins' [ "$plugin_dir" = "$root/lib/moek" ]
check 'moek-plugin.pc gives the ABI that the header has' [ \
	"$(asked --variable=abi_major moek-plugin).$(asked --variable=abi_minor moek-plugin)" = \
	"$(sed -n 's/^#define MOEK_ABI_MAJOR //p;s/^#define MOEK_ABI_MINOR /./p' \
		"$root/include/moek/experts.h" | tr -d '\n')" ]

# nothing of this machine's build is left in what is installed, debug information aside
for file in bin/moek lib/libmoek.so lib/moek/emulation.so; do
	strip -o "$work/stripped" "$root/$file"
	check "$file holds no path of the build" sh -c '! grep -qF -e "$1" -e "$2" "$3"' - \
		"$MOEK_TEST_BUILD" "$stage" "$work/stripped"
done

LD_LIBRARY_PATH=$root/lib
MOEK_CONFIG=$root/etc/moek/moek.ini
MOEK_PLUGIN_DIRS=$plugin_dir
export LD_LIBRARY_PATH MOEK_CONFIG MOEK_PLUGIN_DIRS
cd "$work" || exit 1

exits 0 'a host compiles with pkg-config moek' $cc $cflags -std=c11 -o minimal \
	"$MOEK_TEST_SOURCE/../examples/minimal.c" $(asked --cflags --libs moek)
exits 0 'and runs' ./minimal
shows "$out" '^[a-z0-9_.]+ gives bf16 0x3d8f$' 'with the number worked out by hand'

exits 0 'the installed moek lists its plugins' "$root/bin/moek" list
shows "$out" "$plugin_dir/emulation\\.so" 'from the folder they were installed in'

exits 0 'a plugin compiles with pkg-config moek-plugin' $cc $cflags -std=c11 -shared -fPIC \
	-o plain.so "$MOEK_TEST_SOURCE/embed/plain.c" $(asked --cflags moek-plugin) -lm
bf16=$models/tiny-qwen3moe-bf16
run_plain() {
	"$root/bin/moek" run "$bf16" --against "$bf16/expected/oracle.safetensors" \
		--type bf16 --checks "$@"
}
exits 1 'before it is copied it cannot be required' run_plain --backend 'require plain'
cp plain.so "$plugin_dir"
exits 0 'copied into the folder it runs a checkpoint' run_plain --backend 'require plain'
shows "$out" '^layers\.0 +plain\.bf16 ' 'by its name'
shows "$out" '^4 layers agree with ' 'with the right numbers'
printf '[registry]\nschema = 1\n[priority]\nemulation = on\n' >last.ini
exits 0 'unlisted, it does not jump ahead of what is listed' run_plain --config last.ini
shows "$out" '^layers\.0 +emulation\.any ' 'so emulation runs'
sed 's/^emulation/plain = on\n&/' last.ini >first.ini
exits 0 'with a line of the INI before emulation' run_plain --config first.ini
shows "$out" '^layers\.0 +plain\.bf16 ' 'it runs'
exits 0 'kernelcheck holds it to emulation' "$MOEK_TEST_BUILD/tests/kernelcheck/kernelcheck" \
	"$plugin_dir/plain.so" --quiet
shows "$out" '^[1-9][0-9]* passed, 0 failed, ' 'in more than nothing'
# the core looks for moek-probe where it will be, not below DESTDIR
sed "s|^\[registry\]|&\nprobe_helper = $root/libexec/moek/moek-probe|" \
	"$root/etc/moek/moek.ini" >verify.ini
exits 0 'the installed moek verify passes it' "$root/bin/moek" verify "$plugin_dir/plain.so" \
	--config verify.ini --case '[!F]*'
shows "$out" '^ok [0-9]+ - N\.bf16/silu/bf16 on plain\.bf16$' 'with its numbers'
exits 1 'an int4 checkpoint is refused by it' "$root/bin/moek" explain \
	"$models/tiny-qwen3moe-ct-sym-g32" --backend 'require plain'
shows "$out" 'weight.*int4.*bf16' 'with what was found and what is accepted'

cp -r "$root/share/doc/moek/examples" .
PKG_CONFIG_PATH=$root/lib/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$stage
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
exits 0 'the examples are installed, and the host builds from there' \
	make -C examples/lm -f standalone.mk CC="$cc" CFLAGS="$cflags"
exits 0 'and answers' examples/lm/moek-lm "$models/tiny-qwen3moe-ct-sym-g32" \
	--prompt '347+586=' --max-tokens 3
check 'the right number' [ "$out" = 933 ]
unset PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR

# ---- a plugin of one's own, against what is installed ----

PKG_CONFIG_PATH=$root/lib/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$stage
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
exits 2 'a name that is none is refused' "$root/bin/moek" new-plugin My_Moe
shows "$err" 'My_Moe: a name has 1 to 40 of a-z' 'with what names are'
printf '#!/bin/sh\nexec "%s" "$@" --config "%s"\n' "$root/bin/moek" "$work/verify.ini" >staged-moek
chmod +x staged-moek # looks for moek-probe where it is, not where it will be
exits 0 'moek new-plugin writes a folder' "$root/bin/moek" new-plugin my-moe
exits 1 'but not over one' "$root/bin/moek" new-plugin my-moe
shows "$(head -n 1 my-moe/my-moe.c)" '^/\* SPDX-License-Identifier: MIT \*/$' 'its source says the licence'
exits 2 'a name that make takes for an option is none' "$root/bin/moek" new-plugin -- -x
limited() { # what is longer than 4 blocks cannot be written
	(trap '' XFSZ && ulimit -f 4 && exec "$root/bin/moek" new-plugin "$@")
}
exits 1 'a full disk is an error' limited whole
check 'and leaves nothing behind' [ -z "$(ls -d whole*)" ]
exits 0 'so a second try succeeds' "$root/bin/moek" new-plugin whole
exits 0 'the folder may have another name' "$root/bin/moek" new-plugin my-moe elsewhere/
check 'and holds the same' diff -r my-moe elsewhere
exits 0 'it builds with make' make -C my-moe CC="$cc" CFLAGS="$cflags"
exits 0 'and passes moek verify untouched' make -C my-moe check CC="$cc" MOEK="$work/staged-moek"
shows "$out" '^# certificate: complete$' 'with a complete certificate'
if command -v autoreconf >/dev/null && command -v libtoolize >/dev/null; then
	autotools() {
		(cd my-moe && autoreconf -i && mkdir build && cd build &&
			../configure -q CC="$cc" CFLAGS="$cflags" && make -s && make -s check MOEK="$work/staged-moek")
	}
	exits 0 'and with autotools' autotools
	shows "$out" '^# certificate: complete$' 'as completely'
else
	skipped 'and with autotools' 'they are not installed'
fi
unset PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR

exits 0 'make uninstall succeeds' make -C "$MOEK_TEST_BUILD" uninstall DESTDIR="$stage"
check 'and leaves only what others put there' [ \
	"$(find "$stage" ! -type d | sed "s|^$root/||" | sort)" = lib/moek/plain.so ]

done_testing
