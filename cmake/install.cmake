# `cmake --install` gives a package that find_package(berth) and pkg-config find.
include(CMakePackageConfigHelpers)

install(TARGETS berth EXPORT berthTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/berth DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT berthTargets NAMESPACE berth:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/berth)

configure_package_config_file(cmake/berthConfig.cmake.in berthConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/berth)
write_basic_package_version_file(berthConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/berth.pc.in berth.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/berthConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/berthConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/berth)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/berth.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
