# SPDX-License-Identifier: MIT
# For scripts that read the machine code of a GPU plugin, after tap.sh.
# code_begin PLUGIN: sets $codes to the code objects of this build, or skips all

tool() { # NAME: the newest that is installed
	for version in 22 21 20 19; do
		command -v "$1-$version" && return
	done
	return 1
}

code_begin() {
	if ! objdump=$(tool llvm-objdump) || ! readelf=$(tool llvm-readelf); then
		echo '1..0 # skip no llvm-objdump and llvm-readelf of version 19 or later'
		exit 77
	fi
	codes=
	for code in "$MOEK_TEST_BUILD/plugins/$1"/kernels.*.hsaco; do
		[ -e "$code" ] && codes="$codes $code"
	done
	if [ -z "$codes" ]; then
		echo "1..0 # skip $1 was built without GPU code"
		exit 77
	fi
}

# notes CODE PREFIX: one line a kernel: name registers spilled scratch lds arguments
notes() {
	"$readelf" --notes "$1" | awk -v prefix="$2" '
		/\.group_segment_fixed_size:/ { lds = $NF }
		/\.kernarg_segment_size:/ { arguments = $NF }
		/\.name:/ && index($NF, prefix) == 1 { name = $NF }
		/\.private_segment_fixed_size:/ { scratch = $NF }
		/\.sgpr_spill_count:/ { spilled = $NF }
		/\.vgpr_count:/ { registers = $NF }
		/\.vgpr_spill_count:/ { print name, registers, spilled + $NF, scratch, lds, arguments }'
}

# all LINES CONDITION: an awk condition that holds for every line, of which there are some
all() { awk "!($2) { print \"# \" \$0; bad = 1 } END { exit bad || NR == 0 }" "$1"; }
lacks() { ! grep -Em1 "$2" "$1"; }
# has NAMES COUNT PATTERN: as many kernels have a line that matches
has() { [ "$(grep -E "$3" "$1" | cut -d' ' -f1 | sort -u | wc -l)" -eq "$2" ]; }
