#!/bin/sh
# SPDX-License-Identifier: MIT
# The include rule: clients of the border see <moek/...> and their own folder; core knows
# no plugin; each foreign library has one door.
cd "${srcdir:-.}" || exit 1
status=0
fail() { echo "$1"; status=1; }

grep -rnE '#[[:space:]]*include[[:space:]]+"(\.\./)*(core|tests)/' plugins tools examples parallel |
	grep -vE '"core/(nearest|sha256)\.h"' && # they know nothing of the core; the tool needs them
	fail 'plugins, tools, examples and parallel may include only <moek/...> and their own folder'
grep -rnE '#[[:space:]]*include[[:space:]]+"(\.\./)*(plugins|tests|tools|parallel)/' core include &&
	fail 'core and include must not know plugins, tests or tools'
door() { # HEADER FILE...: only these may include it
	header=$1
	shift
	for file in $(grep -rlE "#[[:space:]]*include[[:space:]]+<$header>" core include tools plugins examples parallel); do
		case " $* " in
		*" $file "*) ;;
		*) fail "$file includes <$header>, whose door is $*" ;;
		esac
	done
}
door 'ini\.h' core/priority.c
# one for plugin files, one for the driver of each kind of GPU, and the conformance kit,
# which looks at a plugin past the core
door 'dlfcn\.h' core/plugin.c plugins/gpu/driver.c tools/verify/subject.c
door 'jansson\.h' core/json.c
door 'mpi\.h' parallel/moek/parallel.h
grep -rnwE 'getenv|secure_getenv' core plugins | grep -v '^core/settings\.c:' &&
	fail 'the environment is read in core/settings.c only'
grep -rniE 'rdna|aiter|gfx[0-9]|avx|vnni|sse[0-9]|neon' core &&
	fail 'core names a backend, a GPU or an instruction set'
for folder in plugins/*/; do
	# "emulation" is also a class of backend, and its name stands in one table
	grep -rnw "\"$(basename "$folder")\"" core | grep -v '^core/status\.c:.*MOEK_EMULATION' &&
		fail "core names the plugin $(basename "$folder")"
done
exit $status
