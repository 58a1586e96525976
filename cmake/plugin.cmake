# kiln_plugin(NAME [LIBRARIES...]): libkiln-NAME.so from src/device/NAME, beside libkiln; nothing if there are none.
# Its own symbols stay hidden in every build, so that they cannot meet those of libkiln or of another plugin: the entry
# point is marked for export in the source.
function(kiln_plugin name)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/device/${name}/*.c src/device/${name}/*.cu)
    if(NOT sources)
        return()
    endif()
    add_library(kiln-${name} MODULE ${sources})
    set_target_properties(kiln-${name} PROPERTIES C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
    target_include_directories(kiln-${name} PRIVATE src)
    target_compile_options(kiln-${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:${kiln_source_warnings}>)
    target_link_libraries(kiln-${name} PRIVATE kiln m ${ARGN})
    kiln_run_path(kiln-${name} "$ORIGIN")
    install(TARGETS kiln-${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# libkiln-cuda.so, where the CUDA toolkit is found: its runtime is linked in; the driver, cuBLASLt, cuDNN and NVRTC are opened
# when they are first needed, so the plugin itself starts on any machine and can say what is missing.
option(KILN_USE_CUDA "Build the CUDA device, where the toolkit is found" ON)
macro(kiln_cuda_plugin)
    include(CheckLanguage)
    set(wanted OFF)
    if(KILN_USE_CUDA AND NOT KILN_SANITIZE)
        check_language(CUDA)
        set(wanted ON)
    endif()
    if(wanted AND CMAKE_CUDA_COMPILER)
        if(NOT CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
        endif()
        enable_language(CUDA)
        find_package(CUDAToolkit REQUIRED)
        message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}")
        kiln_plugin(cuda CUDA::cudart_static ${CMAKE_DL_LIBS} Threads::Threads)
        kiln_use_md(kiln-cuda)
        # A quarter of the size; drivers from CUDA 12.4 on can read it, and older ones are refused in any case.
        target_compile_options(kiln-cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-compress-mode=size>)
        set(here ${PROJECT_SOURCE_DIR}/src/device/cuda)
        # Hopper's own instructions are there for compute capability 9.0 exactly, and for no other.
        add_library(kiln-cuda-hopper OBJECT ${here}/attention/hopper.cu)
        set_target_properties(kiln-cuda-hopper PROPERTIES CUDA_ARCHITECTURES 90a-real CUDA_VISIBILITY_PRESET hidden
            POSITION_INDEPENDENT_CODE ON)
        target_include_directories(kiln-cuda-hopper PRIVATE src include)
        target_compile_options(kiln-cuda-hopper PRIVATE -compress-mode=size)
        get_target_property(plugin_sources kiln-cuda SOURCES)
        list(REMOVE_ITEM plugin_sources ${here}/attention/hopper.cu)
        set_target_properties(kiln-cuda PROPERTIES SOURCES "${plugin_sources}")
        target_sources(kiln-cuda PRIVATE $<TARGET_OBJECTS:kiln-cuda-hopper>)
        # Rounded after every operation, as the CPU's and the generated kernels are: the same bits, fused or not.
        set_source_files_properties(${here}/group/group.cu ${here}/kernels/norm.cu ${here}/kernels/random.cu ${here}/kernels/rows.cu
            PROPERTIES COMPILE_OPTIONS -fmad=false)
        # It holds these as text for generated kernels.
        set(source ${PROJECT_SOURCE_DIR}/src)
        file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${here}/*.cuh ${here}/*.h)
        set_source_files_properties(${here}/compile/nvrtc.c PROPERTIES OBJECT_DEPENDS
            "${headers};${source}/ops/pointwise_math.h;${source}/ops/samples.h;${source}/core/order.h;${source}/core/pose.h;${source}/core/philox_words.h")
    else()
        message(STATUS "CUDA: no")
    endif()
endmacro()
