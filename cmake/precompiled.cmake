# berth_precompile(TARGET HEADER...) compiles these headers and the part of the standard library that nearly every file
# uses once for the target, instead of once per file: half of the processor time of a build was spent on them. A file
# should still include what it uses; scripts/check_format reads most of them without precompiled headers.
option(BERTH_PRECOMPILE "Compile common headers once per target" ${PROJECT_IS_TOP_LEVEL})
set(berth_precompiled_standard <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cstring> <filesystem> <fstream>
  <functional> <map> <memory> <mutex> <numeric> <optional> <span> <string> <thread> <unordered_map> <utility> <vector>)
function(berth_precompile target)
  if(BERTH_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${berth_precompiled_standard} ${ARGN})
  endif()
endfunction()
# ccache looks into precompiled headers only if it is told that their macros and times do not matter.
if(BERTH_PRECOMPILE AND CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache$")
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${CMAKE_CXX_COMPILER_LAUNCHER})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()
