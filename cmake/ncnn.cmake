# The ncnn of scripts/build_ncnn as a target. Its own package file looks for the OpenMP of the compiler in use, which
# clang does not bring along; the library was compiled by g++ and needs that of g++, which both can link.
set(ncnn_folder ${PROJECT_SOURCE_DIR}/build/ncnn)
if(NOT EXISTS ${ncnn_folder}/lib/libncnn.a)
  message(FATAL_ERROR "BERTH_NCNN needs ncnn in ${ncnn_folder}: run scripts/build_ncnn")
endif()
add_library(ncnn STATIC IMPORTED)
set_target_properties(ncnn PROPERTIES
  IMPORTED_LOCATION ${ncnn_folder}/lib/libncnn.a
  INTERFACE_INCLUDE_DIRECTORIES ${ncnn_folder}/include/ncnn
  INTERFACE_LINK_LIBRARIES "Threads::Threads;gomp")
