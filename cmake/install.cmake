# Installs like a C library: library, headers, pkg-config file, CMake package (find_package(kiln) gives kiln::kiln).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kiln)
install(TARGETS kiln EXPORT kiln)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# The exported targets are the whole package: libkiln hands no library on to those that link it.
install(EXPORT kiln FILE kiln-config.cmake NAMESPACE kiln:: DESTINATION ${package_dir})
write_basic_package_version_file(kiln-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kiln-config-version.cmake DESTINATION ${package_dir})

configure_file(cmake/kiln.pc.in kiln.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kiln.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The command's manual and its completion in bash.
configure_file(docs/kiln.1 kiln.1 @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kiln.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
if(TARGET kiln-cli)
    add_custom_command(TARGET kiln-cli POST_BUILD COMMAND kiln-cli completion > ${PROJECT_BINARY_DIR}/kiln.bash VERBATIM)
    install(FILES ${PROJECT_BINARY_DIR}/kiln.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME kiln)
endif()
