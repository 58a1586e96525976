#!/usr/bin/env bash
# Whether the examples of CONTRIBUTING.md are true: every ```diff block of it is applied, in order, to a copy of this source
# tree, which is built, and what each block adds is used and its results are checked.
#
# usage: tests/contributing.sh
#
# The CUDA kernel is compiled where CMake finds a CUDA toolkit, and not run. Nothing is left behind.
# Exit status: 0 all of it holds, 1 something does not; the section of CONTRIBUTING.md is named.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree build=$work/build
failed=0

sections=("Adding an operation" "Adding a kernel to the CPU" "Adding a kernel to CUDA" "Adding a layer"
    "Adding an optimizer" "Adding a data source" "Adding a device")

say() { echo "contributing: $*"; }
complain() { # section, what is wrong [, a file to show]
    echo "contributing: CONTRIBUTING.md, \"$1\": $2" >&2
    [ -z "${3:-}" ] || sed 's/^/    /' "$3" >&2
    failed=1
}

# ---- The copy ----

# What git knows of and what is new, as it is now; without what the build leaves.
copy_tree() {
    mkdir "$tree"
    (cd "$here" && git ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
        tar --null -T - -cf -) | tar -xf - -C "$tree"
    git -C "$tree" init -q # patches are applied within it, wherever it lies
}

# Block N goes to N.diff, the section it stands in to N.section.
take_blocks() {
    awk -v to="$work" '
        /^## / { section = substr($0, 4) }
        /^```diff$/ { n++; print section >(to "/" n ".section"); inside = 1; next }
        /^```/ { inside = 0 }
        inside { print >(to "/" n ".diff") }' "$here/CONTRIBUTING.md"
}

apply_blocks() {
    local n=0 section
    while [ -f "$work/$((++n)).section" ]; do
        section=$(<"$work/$n.section")
        git -C "$tree" apply "$work/$n.diff" 2>"$work/said" || {
            complain "$section" "its diff (block $n of the page) does not apply: what it changes looks different now" \
                "$work/said"
            exit 1
        }
        touched "$n" >>"$work/$section.files"
    done
    for section in "${sections[@]}"; do
        [ -s "$work/$section.files" ] || complain "$section" "it has no diff"
    done
    [ $failed = 0 ] || exit 1
}

touched() { sed -n 's/^+++ b\///p' "$work/$1.diff"; }

# ---- Building ----

# The compiler's complaints, and the sections that touch the files they are about.
blame_build() { # log
    local section file
    grep -E '^FAILED|error|undefined' "$1" | head -n 30 >"$work/errors" || true
    for section in "${sections[@]}"; do
        while read -r file; do
            if grep -qF "$file" "$work/errors"; then
                complain "$section" "$file does not compile or link" "$work/errors"
                break
            fi
        done <"$work/$section.files"
    done
    [ $failed = 1 ] || complain "all sections" "the tree does not build with their diffs" "$1"
    exit 1
}

make_targets() {
    cmake -G Ninja -S "$tree" -B "$build" -DCMAKE_BUILD_TYPE=Debug -DKILN_EXPORT_INTERNAL=ON -DKILN_USE_DNNL=OFF \
        -DKILN_USE_CUDA=OFF -DKILN_BUILD_BENCH=OFF -DKILN_BUILD_EXAMPLES=OFF >"$work/log" 2>&1 || blame_build "$work/log"
    cmake --build "$build" --target "$@" -- -k 0 >"$work/log" 2>&1 || blame_build "$work/log"
}

# ---- What is checked ----

check() { # section, what should be, command …
    local section=$1 what=$2
    shift 2
    (cd "$work" && "$@") >"$work/said" 2>&1 || complain "$section" "$what: this is not so" "$work/said"
}

# The driver of operations, which says how many it has found.
drive() { # operation
    KILN_TEST_ONLY=$1 "$build/tests/test_ops" && grep -q 'differentiable: 1 operations' "$work/said"
}

train() { # folder, options …
    "$build/bin/kiln" train --epochs 1 -q --save "$@"
}

# On this device as on the CPU, to the bit.
same_bits() { # device
    train "$work/on-cpu" --data digits:200 --model lenet --device cpu &&
        train "$work/on-$1" --data digits:200 --model lenet --device "$1" &&
        cmp "$work/on-cpu/best.safetensors" "$work/on-$1/best.safetensors"
}

on_devices() { # devices, test
    KILN_TEST_DEVICES=$1 "$build/tests/$2"
}

# The objects that the section touches: the table of launchers is there, and among those that are asked.
cuda_objects() { # section
    local file objects=()
    cmake -G Ninja -S "$tree" -B "$work/cuda" -DCMAKE_BUILD_TYPE=Debug -DKILN_USE_DNNL=OFF -DKILN_BUILD_EXAMPLES=OFF \
        >"$work/log" 2>&1 || { cat "$work/log" && return 1; }
    if ! grep -q '^-- CUDA: [0-9]' "$work/log"; then
        touch "$work/untried"
        return 0
    fi
    while read -r file; do
        case $file in *.c | *.cu) objects+=("CMakeFiles/kiln-cuda.dir/$file.o") ;; esac
    done <"$work/$1.files"
    cmake --build "$work/cuda" --target "${objects[@]}" || return 1
    cd "$work/cuda"
    nm "${objects[@]}" >symbols
    grep ' [DR] kiln_cuda_kernels_logcumsumexp$' symbols && grep ' U kiln_cuda_kernels_logcumsumexp$' symbols
}

formatted() {
    local clang_format
    clang_format=$(command -v clang-format-14 || command -v clang-format) || return 0
    cd "$tree" && sed -n '/\.[ch]$/p' "$work"/*.files | sort -u | xargs "$clang_format" --dry-run --Werror
}

copy_tree
take_blocks
apply_blocks
say "${#sections[@]} sections, all diffs apply"
make_targets kiln-cli kiln-host test_ops test_calls test_model_file test_layer_scale test_signum test_cifar10 test_step \
    test_devices_agree
say "built after $SECONDS s"
export KILN_PLUGIN_PATH=$build/lib

section=${sections[0]}
check "$section" "tanhshrink has the values, gradients and second gradients of its reference" drive tanhshrink
check "$section" "fuzz/calls.def lists all public functions, and they stand hostile calls" "$build/tests/test_calls"

section=${sections[1]}
check "$section" "logcumsumexp has the values, gradients and second gradients of its reference" drive logcumsumexp

section=${sections[2]}
check "$section" "the launcher compiles, and its table is one that is asked" cuda_objects "$section"
[ ! -e "$work/untried" ] || say "\"$section\": not tried, CMake finds no CUDA toolkit"

section=${sections[3]}
cat >"$work/model.yaml" <<'YAML'
input: [1, 28, 28]
layers:
  - flatten
  - linear: 32
  - residual: [{linear: 32}, relu, layer_scale]
  - linear: 10
YAML
check "$section" "test_layer_scale passes" "$build/tests/test_layer_scale"
check "$section" "docs/model-files.md lists all layers, and they can be built" "$build/tests/test_model_file"
check "$section" "a model file with layer_scale trains" train run-layer --data digits:200 --model model.yaml

section=${sections[4]}
check "$section" "test_signum passes" "$build/tests/test_signum"
check "$section" "kiln train --optim signum trains" train run-optim --data digits:200 --optim signum
check "$section" "kiln train --help names it" bash -c "'$build/bin/kiln' train --help | grep -w signum"

section=${sections[5]}
head -c $((20 * 3073)) /dev/zero >"$work/data_batch_1.bin"
check "$section" "test_cifar10 passes" "$build/tests/test_cifar10"
check "$section" "kiln train takes such a file" train run-data --data data_batch_1.bin --model mlp

section=${sections[6]}
check "$section" "test_step passes on it" on_devices cpu,host test_step
check "$section" "test_devices_agree finds the same bits on it" on_devices cpu,host test_devices_agree
check "$section" "kiln train makes the weights that it makes on the CPU" same_bits host

check "all sections" "tools/check-includes passes" "$tree/tools/check-includes"
check "all sections" "the code is formatted" formatted

[ $failed = 0 ] && say "all of it holds, after $SECONDS s"
exit $failed
