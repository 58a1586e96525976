#!/usr/bin/env bash
# What tools/check-abi lets pass and what it does not, in copies of the headers that were changed.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

try() { # expected status, what is tried, header, sed script [, version, "released"]
    local status=0
    rm -rf "$work/tree" && mkdir "$work/tree"
    cp -r "$here/include" "$here/abi" "$here/CMakeLists.txt" "$here/CHANGELOG.md" "$work/tree"
    local to=$work/tree/include/kiln/$3.h
    sed -i "$4" "$to"
    if cmp -s "$here/include/kiln/$3.h" "$to"; then
        echo "$2: nothing was changed" >&2
        failed=1
    fi
    [ -z "${5:-}" ] || sed -i "s/^project(kiln VERSION [0-9.]*/project(kiln VERSION $5/" "$work/tree/CMakeLists.txt"
    [ -z "${6:-}" ] || sed -i 's/ (not released yet)//' "$work/tree/CHANGELOG.md"
    "$here/tools/check-abi" ${7:-} "$work/tree" >"$work/said" 2>&1 || status=$?
    [ "$status" = "$1" ] || {
        echo "$2: ended with $status instead of $1" >&2
        cat "$work/said" >&2
        failed=1
    }
}

# What programs do not notice.
try 0 "a function more" train '/KILN_API kiln_tensor \*kiln_predict/i KILN_API void kiln_more(int n);'
try 0 "an option more" data 's/^} kiln_loader_options;/    int more;\n&/'
try 0 "a figure more" plan 's/^} kiln_plan_info;/    int64_t more;\n&/'
try 0 "a code more" error 's/^} kiln_code;/    , KILN_E_MORE\n&/'
try 0 "another comment" plan 's/Figures of a plan/Numbers of a plan/'
# What breaks them.
try 1 "a function less" train '/^KILN_API kiln_tensor \*kiln_predict/d'
try 1 "another argument" train 's/kiln_dataset \*data, int64_t batch);/kiln_dataset *data, int batch);/'
try 1 "a member before others" plan 's/^typedef struct kiln_plan_info {/&\n    int64_t more;/'
try 1 "members that change places" data 's/kiln_tensor \*x, \*y; /kiln_tensor *y, *x; /'
try 1 "a member of another type" data 's/^    bool shuffle;/    int64_t shuffle;/'
try 1 "a value that grows" nn 's/^} kiln_params;/    int more;\n&/'
try 1 "a part that grows" train 's/^} kiln_result;/    int more;\n&/'
try 1 "a code before others" error 's/^    KILN_OK = 0,/&\n    KILN_E_MORE,/'
try 1 "the same when released" data 's/^    bool shuffle;/    int64_t shuffle;/' "" released
# What versions allow.
try 0 "written anew before a release" data 's/^    bool shuffle;/    int64_t shuffle;/' "" "" --update
try 1 "written anew after it" data 's/^    bool shuffle;/    int64_t shuffle;/' "" released --update
try 1 "a new minor version without its file" data 's/^    bool shuffle;/    int64_t shuffle;/' 0.9.0
try 0 "a new minor version" data 's/^    bool shuffle;/    int64_t shuffle;/' 0.9.0 "" --update
exit $failed
