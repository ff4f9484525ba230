# openfst_hidden: OpenFst's own library sources, compiled into whatever links to it and hidden.
#
# Linking to a libfst.so instead hangs the process when pywrapfst is imported too: two copies of the
# flag registry, an STB_GNU_UNIQUE symbol, are merged by the loader (docs/design.md).

if(OPENFST_SRC)
  set(openfst_dir "${OPENFST_SRC}")
else()
  execute_process(
    COMMAND bash "${CMAKE_CURRENT_SOURCE_DIR}/scripts/fetch_openfst.sh"
    OUTPUT_VARIABLE openfst_dir OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE openfst_status)
  if(openfst_status)
    message(FATAL_ERROR "OpenFst's sources were not found and could not be fetched (see above); "
                        "set OPENFST_SRC=DIR, an OpenFst 1.7.x or 1.8.x source tree")
  endif()
endif()
if(NOT EXISTS "${openfst_dir}/src/lib/fst.cc")
  message(FATAL_ERROR "OPENFST_SRC: ${openfst_dir} has no src/lib/fst.cc; expected an OpenFst "
                      "1.7.x or 1.8.x source tree; correct OPENFST_SRC or leave it empty")
endif()
message(STATUS "OpenFst sources: ${openfst_dir}")

set(openfst_sources)
foreach(name compat flags fst mapped-file properties symbol-table util weight)
  list(APPEND openfst_sources "${openfst_dir}/src/lib/${name}.cc")
endforeach()

add_library(openfst_hidden STATIC ${openfst_sources})
target_include_directories(openfst_hidden SYSTEM PUBLIC "${openfst_dir}/src/include")
target_compile_definitions(openfst_hidden PUBLIC FST_NO_DYNAMIC_LINKING)
target_compile_options(openfst_hidden PRIVATE -w)
set_target_properties(openfst_hidden PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)  # one unit

# OpenFst 1.8.2 renamed its flags; our code says FLAGS_fst_error_fatal, as 1.7.x does.
file(STRINGS "${openfst_dir}/src/include/fst/flags.h" renamed_flags REGEX "FST_FLAGS_" LIMIT_COUNT 1)
if(renamed_flags)
  target_compile_definitions(openfst_hidden INTERFACE
    FLAGS_fst_error_fatal=FST_FLAGS_fst_error_fatal)
endif()
