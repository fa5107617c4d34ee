# What breaks caches in the field, done to a real penstockd. The loops that take minutes are disabled tests, which
# the label `long` runs.
add_executable(daemon_writer daemon_writer.cc)
target_link_libraries(daemon_writer PRIVATE penstock_compile penstock_daemon_testing)
penstock_test(daemon_writers_test SRCS daemon_writers_test.cc DEPS penstock_daemon_testing LABELS faults TIMEOUT 300)
target_compile_definitions(daemon_writers_test PRIVATE DAEMON_WRITER_PATH="$<TARGET_FILE:daemon_writer>")
add_dependencies(daemon_writers_test daemon_writer)
penstock_test(daemon_load_test SRCS daemon_load_test.cc DEPS penstock_daemon_testing LABELS faults TIMEOUT 300)
penstock_test(daemon_kill_test SRCS daemon_kill_test.cc DEPS penstock_daemon_testing penstock_client LABELS faults TIMEOUT 300)
penstock_test(daemon_log_test SRCS daemon_log_test.cc DEPS penstock_daemon_testing LABELS faults)
add_executable(client_victim client_victim.cc)
target_link_libraries(client_victim PRIVATE penstock_compile penstock_client)
penstock_test(dead_peers_test SRCS dead_peers_test.cc DEPS penstock_daemon_testing penstock_client LABELS faults TIMEOUT 300)
target_compile_definitions(dead_peers_test PRIVATE CLIENT_VICTIM_PATH="$<TARGET_FILE:client_victim>")
add_dependencies(dead_peers_test client_victim)
penstock_test(client_contention_test SRCS client_contention_test.cc DEPS penstock_daemon_testing penstock_client
  LABELS faults TIMEOUT 300)
penstock_test(client_endurance_test SRCS client_endurance_test.cc DEPS penstock_daemon_testing penstock_client
  LABELS faults TIMEOUT 300)
penstock_test(soak_test SRCS soak_test.cc DEPS penstock_daemon_testing LABELS long TIMEOUT 900)
target_compile_definitions(soak_test PRIVATE PENSTOCK_CLI_PATH="$<TARGET_FILE:penstock>")
add_dependencies(soak_test penstock)
add_test(NAME daemon_kill_long COMMAND daemon_kill_test --gtest_also_run_disabled_tests --gtest_filter=*TwoHundred*)
penstock_test_properties(daemon_kill_long long 900)
