# The library: what it needs, its sources, and the parts that bring rules of their own.
find_package(Threads REQUIRED)
find_package(tl-expected REQUIRED)
find_package(fmt REQUIRED)
find_package(TBB REQUIRED)
find_package(nlohmann_json REQUIRED)

# Every source file is found by its folder. A folder that needs flags or steps of its own brings a CMakeLists.txt, which
# adds its files to the library itself.
file(GLOB_RECURSE berth_sources CONFIGURE_DEPENDS src/*.cpp)
file(GLOB_RECURSE berth_parts CONFIGURE_DEPENDS src/CMakeLists.txt)
foreach(part IN LISTS berth_parts)
  cmake_path(GET part PARENT_PATH folder)
  list(FILTER berth_sources EXCLUDE REGEX "^${folder}/[^/]*$")
endforeach()
if(APPLE)
  list(FILTER berth_sources EXCLUDE REGEX "/src/base/os/linux/")
else()
  list(FILTER berth_sources EXCLUDE REGEX "/src/base/os/macos/")
endif()
list(FILTER berth_sources EXCLUDE REGEX "/src/interop/metal[^/]*$")  # src/devices/metal adds one of the two

add_library(berth ${berth_sources})
add_library(berth::berth ALIAS berth)
target_compile_features(berth PUBLIC cxx_std_20)
target_include_directories(berth
  PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(berth PUBLIC tl::expected Threads::Threads PRIVATE fmt::fmt TBB::tbb ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> $<BUILD_INTERFACE:berth_warnings>)
target_compile_definitions(berth PRIVATE BERTH_VERSION="${PROJECT_VERSION}")
berth_precompile(berth <fmt/format.h> <tl/expected.hpp>)
berth_unite(berth)
foreach(part IN LISTS berth_parts)
  cmake_path(GET part PARENT_PATH folder)
  add_subdirectory(${folder})
endforeach()
