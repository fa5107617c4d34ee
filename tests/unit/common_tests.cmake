# Tests of common/{format,keys,log,config,metrics}.

penstock_test(checksum_test SRCS checksum_test.cc DEPS penstock_format PkgConfig::XXHASH)
add_test(NAME checksum_symbols_test COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checksum_symbols_test.sh
  ${CMAKE_NM} $<TARGET_OBJECTS:penstock_checksum_kernels> COMMAND_EXPAND_LISTS)
set_tests_properties(checksum_symbols_test PROPERTIES LABELS unit TIMEOUT 120)
foreach(name keys namespace manifest)
  penstock_test(${name}_test SRCS ${name}_test.cc DEPS penstock_format nlohmann_json::nlohmann_json)
  target_compile_definitions(${name}_test PRIVATE
    PENSTOCK_GOLDEN_DIR="${CMAKE_CURRENT_SOURCE_DIR}/golden")
endforeach()
penstock_test(selection_test SRCS selection_test.cc DEPS penstock_format)
penstock_test(verify_test SRCS verify_test.cc DEPS penstock_format)
add_test(NAME golden_files_test
  COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/golden/make_golden.py --check)
set_tests_properties(golden_files_test PROPERTIES LABELS unit TIMEOUT 120)
foreach(name nearest random units)
  penstock_test(${name}_test SRCS ${name}_test.cc DEPS penstock_base)
endforeach()
penstock_test(log_test SRCS log_test.cc log_writer_test.cc DEPS penstock_log nlohmann_json::nlohmann_json)
penstock_test(config_test SRCS config_test.cc DEPS penstock_config)
penstock_test(metrics_test SRCS metrics_test.cc DEPS penstock_metrics)
