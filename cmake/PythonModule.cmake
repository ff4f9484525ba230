# lattice_bpd._core: the bindings of src/, which export PyInit__core and nothing else.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT pybind11_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_cmakedir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(PREPEND CMAKE_PREFIX_PATH "${pybind11_cmakedir}")
endif()
find_package(pybind11 2.13 CONFIG REQUIRED)

file(GLOB module_sources CONFIGURE_DEPENDS src/*.cc)
pybind11_add_module(_core MODULE NO_EXTRAS ${module_sources})
target_link_libraries(_core PRIVATE lattice_bpd_core lattice_bpd_warnings)
compile_together(_core 5)

set(version_script "${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map")
target_link_options(_core PRIVATE
  "LINKER:--exclude-libs,ALL" "LINKER:--version-script,${version_script}"
  $<$<CONFIG:Release>:LINKER:--strip-all>)
set_target_properties(_core PROPERTIES LINK_DEPENDS "${version_script}")
install(TARGETS _core LIBRARY DESTINATION lattice_bpd)

# The licences of what is compiled in go with it, as they came with its sources (THIRD_PARTY.md).
if(SKBUILD_METADATA_DIR)
  install(FILES "${openfst_dir}/COPYING" "${openfst_dir}/AUTHORS"
          DESTINATION "${SKBUILD_METADATA_DIR}/licenses/openfst" OPTIONAL)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "from importlib.metadata import files; print(next(f.locate() for f in files('pybind11') if f.name == 'LICENSE'))"
    OUTPUT_VARIABLE pybind11_license OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(EXISTS "${pybind11_license}")
    install(FILES "${pybind11_license}" DESTINATION "${SKBUILD_METADATA_DIR}/licenses/pybind11")
  endif()
endif()

if(SKBUILD_STATE STREQUAL "editable")
  set(core_file_name "_core${PYTHON_MODULE_EXTENSION}")
  find_program(NINJA_EXECUTABLE "${CMAKE_MAKE_PROGRAM}" REQUIRED)
  configure_file(cmake/rebuild_on_import.py.in _lattice_bpd_rebuild.py @ONLY)
  file(CONFIGURE OUTPUT _lattice_bpd_rebuild.pth CONTENT "import _lattice_bpd_rebuild\n")
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/_lattice_bpd_rebuild.py"
                "${CMAKE_CURRENT_BINARY_DIR}/_lattice_bpd_rebuild.pth" DESTINATION .)
endif()
