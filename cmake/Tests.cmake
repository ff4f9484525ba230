# One executable of all tests/cpp/*_test.cc; ctest runs it once for each file.

find_path(DOCTEST_INCLUDE_DIR doctest/doctest.h)
if(NOT DOCTEST_INCLUDE_DIR)
  message(FATAL_ERROR "doctest/doctest.h was not found; apt-get install doctest-dev, or set "
                      "LATTICE_BPD_BUILD_TESTS=OFF")
endif()

enable_testing()
file(GLOB test_sources CONFIGURE_DEPENDS tests/cpp/*_test.cc)
set(test_main "${CMAKE_CURRENT_BINARY_DIR}/test_main.cc")
file(CONFIGURE OUTPUT "${test_main}" CONTENT
  "#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN\n#include <doctest/doctest.h>\n")
add_executable(lattice_bpd_tests ${test_sources} "${test_main}")
target_include_directories(lattice_bpd_tests SYSTEM PRIVATE "${DOCTEST_INCLUDE_DIR}")
target_link_libraries(lattice_bpd_tests PRIVATE lattice_bpd_core openfst_hidden lattice_bpd_warnings)
# The library is tested as it is optimized; the tests themselves run once.
target_compile_options(lattice_bpd_tests PRIVATE $<$<CONFIG:Release>:-O1>)
target_precompile_headers(lattice_bpd_tests PRIVATE
  <doctest/doctest.h> <algorithm> <cmath> <functional> <limits> <random> <sstream> <string> <vector>)
set_source_files_properties("${test_main}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)

set(test_timeout 120)
if(LATTICE_BPD_SANITIZE OR CMAKE_CROSSCOMPILING)
  set(test_timeout 1200)
endif()
set(test_options)
if(CMAKE_CROSSCOMPILING)  # QEMU 7.2 ends a forked child that starts threads
  set(test_options "--test-case-exclude=a forked child*")
endif()
foreach(source ${test_sources})
  cmake_path(GET source STEM name)
  add_test(NAME ${name} COMMAND lattice_bpd_tests "--source-file=*/${name}.cc" ${test_options})
  # No test found is a failure, though doctest's exit status does not say so.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_timeout}
                                          FAIL_REGULAR_EXPRESSION "test cases: +0 ")
endforeach()
