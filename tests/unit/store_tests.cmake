penstock_test(store_test SRCS store_test.cc DEPS penstock_store)
