# Tests of penstockd: in this process, and as a process of its own.
penstock_library(penstock_daemon_testing
  SRCS daemon_process.cc daemon_raw_client.cc
  DEPS penstock_daemon nlohmann_json::nlohmann_json)
target_compile_definitions(penstock_daemon_testing PRIVATE PENSTOCKD_PATH="$<TARGET_FILE:penstockd>")
add_dependencies(penstock_daemon_testing penstockd)
penstock_test(daemon_serving_test SRCS daemon_serving_test.cc DEPS penstock_daemon_testing LABELS integration)
penstock_test(daemon_admin_test SRCS daemon_admin_test.cc DEPS penstock_daemon_testing penstock_admin LABELS integration)
penstock_test(daemon_process_test SRCS daemon_process_test.cc DEPS penstock_daemon_testing LABELS integration TIMEOUT 300)
target_compile_definitions(daemon_process_test PRIVATE PENSTOCK_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
penstock_test(daemon_counters_test SRCS daemon_counters_test.cc DEPS penstock_daemon_testing penstock_api LABELS integration)
