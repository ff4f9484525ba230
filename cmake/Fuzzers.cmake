# One executable for each tests/fuzz/fuzz_*.cc, with libFuzzer's main (scripts/fuzz.py runs them).

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "LATTICE_BPD_BUILD_FUZZERS: the compiler is ${CMAKE_CXX_COMPILER_ID}; libFuzzer "
                      "comes with clang, set CMAKE_CXX_COMPILER=clang++")
endif()

# clang builds vector code only in files that are wholly compiled for it. What the linker shares
# with other files may then use it too, so only what this machine runs is built.
include(CheckCXXSourceRuns)
foreach(set avx2 avx512)
  set(options -mavx2 -mf16c -mbmi -mbmi2 -mpopcnt -mlzcnt)
  set(needed avx2)
  if(set STREQUAL "avx512")
    list(APPEND options -mavx512f -mavx512bw -mavx512dq -mavx512vl)
    set(needed avx512vl)
  endif()
  check_cxx_source_runs("int main() { return !__builtin_cpu_supports(\"${needed}\"); }" runs_${set})
  if(runs_${set})
    set_source_files_properties(
      cpp/lattice_bpd/draft/fused_${set}.cc cpp/lattice_bpd/lattice/top_k_${set}.cc
      PROPERTIES COMPILE_OPTIONS "${options}")
  endif()
endforeach()

file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/fuzz_*.cc)
foreach(source ${fuzz_sources})
  cmake_path(GET source STEM name)
  add_executable(${name} "${source}")
  target_include_directories(${name} PRIVATE tests/cpp)
  target_link_libraries(${name} PRIVATE lattice_bpd_core lattice_bpd_warnings)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endforeach()
