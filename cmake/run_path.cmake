# kiln_run_path(TARGET [FOLDERS...]): where a program or library that is installed looks for the libraries it needs: in
# these folders, and in those it was linked from where they are none of the system's. The build tree uses the same path:
# where the two differ, CMake makes room for the second by an empty element behind the first, and the dynamic linker takes
# that for the current folder. tools/check-run-paths looks for such elements.
function(kiln_run_path target)
    set(folders ${ARGN})
    list(REMOVE_DUPLICATES folders)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON
        INSTALL_RPATH "${folders}")
endfunction()
