# The transport, over every wire and kind of socket.
penstock_library(penstock_transport_peers SRCS transport_peers.cc child_process.cc raw_peer.cc
  DEPS penstock_transport GTest::gtest)
add_executable(transport_child transport_child.cc)
target_link_libraries(transport_child PRIVATE penstock_transport)

penstock_test(transport_conformance_test SRCS transport_conformance_test.cc DEPS penstock_transport_peers
  LABELS integration TIMEOUT 300)
penstock_test(transport_lifecycle_test SRCS transport_lifecycle_test.cc DEPS penstock_transport_peers
  LABELS integration TIMEOUT 300)
target_compile_definitions(transport_lifecycle_test PRIVATE
  PENSTOCK_TRANSPORT_CHILD="$<TARGET_FILE:transport_child>")
add_dependencies(transport_lifecycle_test transport_child)
penstock_test(transport_hostile_test SRCS transport_hostile_test.cc DEPS penstock_transport_peers
  LABELS integration TIMEOUT 300)
add_executable(confined confined.cc)
target_link_libraries(confined PRIVATE penstock_compile)
penstock_test(transport_local_test SRCS transport_local_test.cc DEPS penstock_transport_peers
  LABELS integration TIMEOUT 120)
target_compile_definitions(transport_local_test PRIVATE
  PENSTOCK_CONFINED="$<TARGET_FILE:confined>" PENSTOCK_TRANSPORT_CHILD="$<TARGET_FILE:transport_child>")
add_dependencies(transport_local_test transport_child confined)
penstock_test(transport_ucx_test SRCS transport_ucx_test.cc DEPS penstock_transport_peers
  LABELS integration TIMEOUT 120)
target_compile_definitions(transport_ucx_test PRIVATE
  PENSTOCK_TRANSPORT_CHILD="$<TARGET_FILE:transport_child>")
add_dependencies(transport_ucx_test transport_child)
penstock_test(transport_endpoint_test SRCS transport_endpoint_test.cc DEPS penstock_transport_peers
  LABELS integration TIMEOUT 300)

# UCX leaves its shared memory out where the death of a peer is to be noticed, unless told otherwise.
add_test(NAME transport_ucx_shm_test COMMAND transport_conformance_test --gtest_filter=*Ucx*)
penstock_test_properties(transport_ucx_shm_test integration 300)
set_tests_properties(transport_ucx_shm_test PROPERTIES ENVIRONMENT UCX_MM_ERROR_HANDLING=y)
# ...and that UCX really took it there.
add_test(NAME transport_ucx_shm_is_used
  COMMAND transport_conformance_test --gtest_filter=*MessagesArriveWholeAndInOrder/UcxUnix)
penstock_test_properties(transport_ucx_shm_is_used integration 120)
set_tests_properties(transport_ucx_shm_is_used PROPERTIES
  ENVIRONMENT "UCX_MM_ERROR_HANDLING=y;UCX_LOG_LEVEL=info" PASS_REGULAR_EXPRESSION "am\\([a-z]+/memory\\)")
