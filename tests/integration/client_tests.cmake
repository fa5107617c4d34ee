penstock_library(penstock_client_puppet SRCS client_puppet.cc DEPS penstock_client GTest::gtest)
    foreach (test client_fetch_test client_store_test client_link_test client_life_test)
        penstock_test(${test} SRCS ${test}.cc DEPS penstock_client_puppet LABELS integration)
            endforeach()

# From C99, against the shared library alone.
add_executable(client_c_test client_c_test.c)
set_target_properties(client_c_test PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
target_compile_options(client_c_test PRIVATE -Wall -Wextra -Wpedantic -Werror)
target_include_directories(client_c_test PRIVATE "${CMAKE_SOURCE_DIR}")
target_link_libraries(client_c_test PRIVATE penstock_c)
add_test(NAME client_c_test COMMAND client_c_test)
penstock_test_properties(client_c_test integration 60)

if(PENSTOCK_BUILD_SERVER)
  penstock_test(client_daemon_test SRCS client_daemon_test.cc
    DEPS penstock_client penstock_daemon_testing LABELS integration)
  penstock_test(client_restart_test SRCS client_restart_test.cc
    DEPS penstock_client penstock_daemon_testing LABELS integration)
  penstock_test(read_paths_test SRCS read_paths_test.cc flipping_proxy.cc
    DEPS penstock_client penstock_c penstock_daemon_testing LABELS integration TIMEOUT 300)
  penstock_test(client_cli_test SRCS client_cli_test.cc
    DEPS penstock_client penstock_daemon_testing LABELS integration)
  target_compile_definitions(client_cli_test PRIVATE PENSTOCK_CLI_PATH="$<TARGET_FILE:penstock>")
  add_dependencies(client_cli_test penstock)
endif()
