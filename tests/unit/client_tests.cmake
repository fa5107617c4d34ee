penstock_test(client_memory_test SRCS client_memory_test.cc DEPS penstock_client)
if(PENSTOCK_BUILD_SERVER)
  penstock_test(client_self_describing_test SRCS client_self_describing_test.cc DEPS penstock_bench_support)
endif()
