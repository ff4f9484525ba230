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
add_library(doctest_main STATIC "${test_main}")
target_include_directories(doctest_main SYSTEM PUBLIC "${DOCTEST_INCLUDE_DIR}")

set(test_timeout 120)
if(LATTICE_BPD_SANITIZE)
  set(test_timeout 1200)
endif()
foreach(source ${test_sources})
  cmake_path(GET source STEM name)
  add_executable(${name} "${source}")
  target_link_libraries(${name} PRIVATE lattice_bpd_core lattice_bpd_warnings doctest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_timeout})
endforeach()
