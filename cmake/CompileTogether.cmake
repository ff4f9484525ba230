# compile_together(target files_in_one): compiles a target's sources as few translation units.
#
# For sources whose common headers cost more than themselves. The sources share anonymous
# namespaces, so names must not collide. Call it when the target is complete.
function(compile_together target files_in_one)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files_in_one})
  # The same sources one by one, for editors and clang-tidy (entries of compile_commands.json) and
  # to check that each compiles alone: `ninja ${target}_separate`. Nothing else builds it.
  get_target_property(sources ${target} SOURCES)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  add_library(${target}_separate OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${target}_separate PRIVATE ${libraries})
endfunction()
