# Compiler settings shared by every target, and the two helpers that declare targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

# The baseline is what the distribution's compiler assumes for the architecture; faster
# instructions are chosen at run time, so one binary runs on every machine of a fleet.
add_library(penstock_compile INTERFACE)
target_include_directories(penstock_compile INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
target_compile_options(penstock_compile INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers)
# Off where Penstock is installed from source, with whatever compiler is there.
option(PENSTOCK_WERROR "Treat warnings as errors" ON)
if(PENSTOCK_WERROR)
  target_compile_options(penstock_compile INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(penstock_compile INTERFACE -Wthread-safety -Wthread-safety-beta)
endif()

if(PENSTOCK_SANITIZE)
  add_compile_options(-fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PENSTOCK_SANITIZE})
endif()

option(PENSTOCK_FUZZ "Build the libFuzzer harnesses (clang++)" OFF)
if(PENSTOCK_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(PENSTOCK_CCACHE ccache)
if(PENSTOCK_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${PENSTOCK_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${PENSTOCK_CCACHE}")
endif()

# penstock_library(NAME SRCS ... [DEPS ...])
function(penstock_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  target_link_libraries(${name} PUBLIC penstock_compile ${ARG_DEPS})
  set_property(GLOBAL APPEND PROPERTY PENSTOCK_LIBRARIES ${name})  # For the check of headers.
endfunction()

# What prebuilt libraries do is not for our sanitizers to judge: tests/sanitizers says what is kept quiet.
# intercept_tls_get_addr=0: LeakSanitizer guesses where the thread-local memory of libraries begins that
# were loaded later (UCX's modules), and is killed by reading there when the guess is wrong.
# die_after_fork=0: a child that is forked for a test starts threads of its own, the log's for one.
set(PENSTOCK_SANITIZER_ENVIRONMENT
  "ASAN_OPTIONS=set:detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1:intercept_tls_get_addr=0"
  "LSAN_OPTIONS=set:suppressions=${CMAKE_SOURCE_DIR}/tests/sanitizers/lsan.txt:print_suppressions=0"
  "UBSAN_OPTIONS=set:print_stacktrace=1:suppressions=${CMAKE_SOURCE_DIR}/tests/sanitizers/ubsan.txt"
  "TSAN_OPTIONS=set:suppressions=${CMAKE_SOURCE_DIR}/tests/sanitizers/tsan.txt:halt_on_error=1:second_deadlock_stack=1:die_after_fork=0")

# penstock_test(NAME SRCS ... [DEPS ...] [LABELS ...] [TIMEOUT seconds]): one GoogleTest program.
function(penstock_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE penstock_compile ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  penstock_test_properties(${name} "${ARG_LABELS}" ${ARG_TIMEOUT})
endfunction()

# penstock_test_properties(NAME LABELS TIMEOUT): what every test has; more time where a sanitizer
# makes programs several times slower.
function(penstock_test_properties name labels timeout)
  if(PENSTOCK_SANITIZE)
    math(EXPR timeout "${timeout} * 5")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION "${PENSTOCK_SANITIZER_ENVIRONMENT}")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout})
endfunction()
