# Interface target with the warnings and instrumentation that all our own targets share.
add_library(berth_warnings INTERFACE)
target_compile_options(berth_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees copies that overlap or leave their object in `"text" + std::string` where there are none (GCC bug 105651).
  target_compile_options(berth_warnings INTERFACE -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Members say which mutex guards them: see include/berth/base/mutex.h. An access without the lock does not compile.
  target_compile_options(berth_warnings INTERFACE -Wthread-safety -Werror=thread-safety)
endif()
if(BERTH_WERROR)
  target_compile_options(berth_warnings INTERFACE -Werror)
endif()
if(BERTH_SANITIZE)
  add_compile_options(-fsanitize=${BERTH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${BERTH_SANITIZE})
endif()
if(BERTH_COVERAGE)
  # The counters are not atomic, which makes a loop ten times faster: threads may lose counts, but not that a line ran.
  add_compile_options(-fprofile-instr-generate -fcoverage-mapping)
  add_link_options(-fprofile-instr-generate)
endif()
