# How every C file is compiled; kiln_cpu_flags adds what the kernels of the CPU device need.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()
find_program(KILN_CCACHE ccache)
if(KILN_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${KILN_CCACHE})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${KILN_CCACHE})
endif()

# No contraction: whether a * b + c is rounded once or twice must not depend on how a loop was vectorised.
# No interposition: calls inside the library go straight to their target, also where symbols are exported for tests.
set(c "$<$<COMPILE_LANGUAGE:C,CXX>:") # nvcc has flags of its own
add_compile_options("${c}-ffp-contract=off;-fno-semantic-interposition;-Wall;-Wextra;-Wshadow;-Wpointer-arith;-Wundef>")
add_compile_options($<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # loops over a few dims stay loops instead of becoming calls of memcpy
    add_compile_options("${c}-fno-tree-loop-distribute-patterns>")
endif()
if(KILN_WERROR)
    add_compile_options("${c}-Werror>")
endif()
set(kiln_source_warnings -Wmissing-prototypes) # for src/ only: tests and examples need no headers of their own

if(KILN_SANITIZE)
    add_compile_options(-O1 -g -fno-omit-frame-pointer -fsanitize=${KILN_SANITIZE} -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${KILN_SANITIZE})
else()
    # A symbol nobody defines fails here, not when the library is opened. Sanitizers leave theirs to the executable.
    add_link_options(LINKER:-z,defs)
endif()

# What runs once a recorded operation is many small functions in many files: a tenth of its time goes when they are
# optimised together. Kernels are left out: they gain nothing.
if(KILN_LTO AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release")
    set(kiln_together -flto=auto)
endif()

# src/device/cpu: optimised hard; *_avx2.c, *_avx512.c and the like may use what their name says, and are only called on
# machines that have it. Elsewhere than on x86-64 those files guard themselves and come out empty.
function(kiln_cpu_flags)
    set(avx2 -mavx2 -mfma -mf16c)
    set(avx512 -mavx512f -mavx512vl -mavx512bw -mavx512dq ${avx2})
    if(KILN_SANITIZE STREQUAL "address" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        # Its stack frames for finding uses after return hold vectors of 64 bytes unaligned (gcc's bug 110027).
        list(APPEND avx512 --param=asan-use-after-return=0)
    endif()
    set(avx512bf16 -mavx512bf16 ${avx512})
    set(amx -mamx-tile -mamx-bf16 ${avx512})
    foreach(file IN LISTS ARGN)
        if(NOT file MATCHES "/src/device/cpu/")
            # Elsewhere loops run over a tensor's few dims: preparing vectors for them costs more than they take.
            set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "-fno-tree-vectorize;${kiln_together}")
            continue()
        endif()
        set(options "$<$<CONFIG:Release,RelWithDebInfo>:-O3;-fno-math-errno;-fno-trapping-math>")
        if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$" AND file MATCHES "_(avx2|avx512|avx512bf16|amx)\\.c$")
            list(APPEND options ${${CMAKE_MATCH_1}})
        endif()
        set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${options}")
    endforeach()
endfunction()
