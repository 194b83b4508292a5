# berth_unite(TARGET) compiles the sources of a folder together, several as one: their headers are read, and the templates
# that they share are instantiated, once for all of them, which saves most of the time of a first build. So no two sources
# of a folder may use one name for different things in an unnamed namespace. A change compiles the neighbours again; the
# preset `debug` leaves this out.
option(BERTH_UNITE "Compile several sources of a folder as one" ${PROJECT_IS_TOP_LEVEL})
set(berth_united_most 8)  # sources: more would leave a processor without work at the end of a build
# Single sources of these folders have rights of their own, which the test of the layers checks by their objects.
set(berth_united_never src src/devices src/interop src/plan)

function(berth_unite target)
  if(NOT BERTH_UNITE)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    cmake_path(GET name PARENT_PATH folder)
    if(NOT source MATCHES "\\.cpp$" OR folder MATCHES "^\\.\\." OR folder IN_LIST berth_united_never)
      continue()
    endif()
    # The sources of folder/name.cpp are counted by folder, and every eighth begins a new group.
    string(MAKE_C_IDENTIFIER "count_${folder}" count)
    math(EXPR ${count} "${${count}}+1")
    math(EXPR group "(${${count}}-1)/${berth_united_most}")
    string(REPLACE / - group "${folder}-${group}")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # g++ takes the sources for headers, in which unnamed namespaces would be a mistake.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()
