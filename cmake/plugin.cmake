# kiln_plugin(NAME [LIBRARIES...]): libkiln-NAME.so from src/device/NAME/*.c, beside libkiln; nothing if there are none.
# Its own symbols stay hidden in every build, so that they cannot meet those of libkiln or of another plugin: the entry
# point is marked for export in the source.
function(kiln_plugin name)
    file(GLOB sources CONFIGURE_DEPENDS src/device/${name}/*.c)
    if(NOT sources)
        return()
    endif()
    add_library(kiln-${name} MODULE ${sources})
    set_target_properties(kiln-${name} PROPERTIES C_VISIBILITY_PRESET hidden INSTALL_RPATH "$ORIGIN")
    target_include_directories(kiln-${name} PRIVATE src)
    target_compile_options(kiln-${name} PRIVATE ${kiln_source_warnings})
    target_link_libraries(kiln-${name} PRIVATE kiln m ${ARGN})
    install(TARGETS kiln-${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
