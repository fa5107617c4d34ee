/* The C interface, from C99. Without an argument: everything that needs no daemon. With the address
 * of a daemon as argument: everything else. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/penstock.h"

static int failures = 0;

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, penstock_last_error()); \
      ++failures;                                                                                 \
    }                                                                                             \
  } while (0)
#define CHECK_CODE(code, call) CHECK((call) == (code))

static penstock_namespace* OpenTest(penstock_client* client) {
  penstock_namespace* ns = NULL;
  penstock_text_pair extension[] = {{"runner", "c-test"}};
  penstock_descriptor d;
  PENSTOCK_INIT(d);
  d.tenant = "default";
  d.model = "test-model";
  d.kv_dtype = "bfloat16";
  d.layout = "test.v1";
  d.block_tokens = 16;
  d.chunk_tokens = 256;
  d.extension = extension;
  d.extension_count = 1;
  CHECK_CODE(PENSTOCK_OK, penstock_namespace_open(client, &d, &ns));
  return ns;
}

static void TestCodes(void) {
  CHECK(strcmp(penstock_code_name(PENSTOCK_MISS), "MISS") == 0);
  CHECK(strcmp(penstock_code_name(PENSTOCK_CORRUPT_MESSAGE), "CORRUPT_MESSAGE") == 0);
  CHECK(strcmp(penstock_code_name(4711), "UNKNOWN") == 0);
  CHECK(strcmp(penstock_code_name(-1), "UNKNOWN") == 0);
  CHECK(strcmp(penstock_code_name(65537), "UNKNOWN") == 0);
  CHECK(penstock_code_advice(PENSTOCK_OK)[0] == '\0');
  CHECK(penstock_code_advice(PENSTOCK_BUSY)[0] != '\0');
  CHECK(strlen(penstock_version()) >= 5);
}

static void TestNulls(void) {
  penstock_client* client = NULL;
  penstock_client_options options;
  uint64_t id = 0;
  penstock_key key;
  memset(&options, 0, sizeof(options)); /* struct_size forgotten. */
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_client_create(NULL, NULL));
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_client_create(&options, &client));
  PENSTOCK_INIT(options);
  options.address = "carrier-pigeon://coop";
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_client_create(&options, &client));
  CHECK(client == NULL);
  CHECK(strstr(penstock_last_error(), "pigeon") != NULL);
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_client_wait_connected(NULL, 0));
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_client_get_stats(NULL, NULL));
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_client_register(NULL, NULL, 0, &id));
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_namespace_open(NULL, NULL, NULL));
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_named_key(NULL, "x", &key));
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT,
             penstock_fetch(NULL, NULL, 0, sizeof(penstock_fetch_item), NULL, 0, NULL));
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_ping(NULL, 0));
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_operation_wait(NULL, 0));
  CHECK(penstock_operation_item_count(NULL) == 0);
  penstock_client_free(NULL);
  penstock_namespace_free(NULL);
  penstock_operation_free(NULL);
}

static void TestKeys(penstock_namespace* ns) {
  penstock_key fingerprint, named, again, first, second, tokens;
  const uint32_t ids[] = {1, 2, 3};
  CHECK_CODE(PENSTOCK_OK, penstock_namespace_fingerprint(ns, &fingerprint));
  CHECK_CODE(PENSTOCK_OK, penstock_named_key(ns, "object", &named));
  CHECK_CODE(PENSTOCK_OK, penstock_named_key(ns, "object", &again));
  CHECK(memcmp(&named, &again, sizeof(named)) == 0);
  CHECK_CODE(PENSTOCK_OK, penstock_prefix_key(ns, NULL, "hash", 4, &first));
  CHECK_CODE(PENSTOCK_OK, penstock_prefix_key(ns, &first, "hash", 4, &second));
  CHECK(memcmp(&first, &second, sizeof(first)) != 0);
  CHECK_CODE(PENSTOCK_OK, penstock_tokens_key(ns, NULL, ids, 3, &tokens));
  CHECK(memcmp(&first, &tokens, sizeof(first)) != 0);
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_prefix_key(ns, NULL, NULL, 4, &first));
}

static void TestWithoutDaemon(void) {
  penstock_client* client = NULL;
  penstock_client_options options;
  penstock_client_stats stats;
  penstock_namespace* ns;
  penstock_key key;
  char buffer[16];
  size_t bytes = 77;
  PENSTOCK_INIT(options);
  options.address = "unix:///nowhere/to/be/found";
  options.patience_ms = 50;
  /* What an older program has: a shorter struct. */
  options.struct_size = offsetof(penstock_client_options, streams);
  CHECK_CODE(PENSTOCK_OK, penstock_client_create(&options, &client));
  CHECK_CODE(PENSTOCK_DISCONNECTED, penstock_client_wait_connected(client, 20));
  ns = OpenTest(client);
  TestKeys(ns);
  CHECK_CODE(PENSTOCK_OK, penstock_named_key(ns, "object", &key));
  CHECK_CODE(PENSTOCK_DISCONNECTED,
             penstock_get(client, ns, &key, buffer, sizeof(buffer), 5000, &bytes));
  CHECK(bytes == 0);
  CHECK_CODE(PENSTOCK_DISCONNECTED, penstock_put(client, ns, &key, "x", 1, 5000));
  CHECK_CODE(PENSTOCK_DISCONNECTED, penstock_ping(client, 5000));
  PENSTOCK_INIT(stats);
  CHECK_CODE(PENSTOCK_OK, penstock_client_get_stats(client, &stats));
  CHECK(stats.connected == 0 && stats.operations == 3 && stats.failed_operations == 3);
  /* An older program's shorter struct is filled as far as it goes. */
  memset(&stats, 0x5a, sizeof(stats));
  stats.struct_size = offsetof(penstock_client_stats, connects);
  CHECK_CODE(PENSTOCK_OK, penstock_client_get_stats(client, &stats));
  CHECK(stats.in_flight == 0 && stats.connects == UINT64_C(0x5a5a5a5a5a5a5a5a));
  penstock_namespace_free(ns);
  penstock_client_free(client);
}

static void Called(penstock_operation* operation, void* user) {
  CHECK(penstock_operation_done(operation));
  penstock_operation_free(operation); /* Allowed here. */
  __atomic_add_fetch((int*)user, 1, __ATOMIC_SEQ_CST);
}

static void TestValues(penstock_client* client, penstock_namespace* ns) {
  const char value[] = "right bytes or a miss";
  char buffer[64];
  size_t bytes = 0;
  penstock_key key;
  penstock_code codes[2];
  penstock_stat_result stat;
  CHECK_CODE(PENSTOCK_OK, penstock_named_key(ns, "value", &key));
  CHECK_CODE(PENSTOCK_OK, penstock_drop(client, ns, &key, 1, 5000, codes) == PENSTOCK_MISS
                              ? PENSTOCK_OK
                              : codes[0]);
  CHECK_CODE(PENSTOCK_MISS, penstock_get(client, ns, &key, buffer, sizeof(buffer), 5000, &bytes));
  CHECK_CODE(PENSTOCK_OK, penstock_put(client, ns, &key, value, sizeof(value), 5000));
  CHECK_CODE(PENSTOCK_ALREADY_EXISTS, penstock_put(client, ns, &key, value, sizeof(value), 5000));
  CHECK_CODE(PENSTOCK_OK, penstock_get(client, ns, &key, buffer, sizeof(buffer), 5000, &bytes));
  CHECK(bytes == sizeof(value) && memcmp(buffer, value, bytes) == 0);
  CHECK_CODE(PENSTOCK_BUFFER_TOO_SMALL, penstock_get(client, ns, &key, buffer, 3, 5000, &bytes));
  CHECK(bytes == sizeof(value));
  CHECK_CODE(PENSTOCK_BAD_BUFFER, penstock_get(client, ns, &key, NULL, 64, 5000, NULL));
  PENSTOCK_INIT(stat);
  CHECK_CODE(PENSTOCK_OK, penstock_stat(client, ns, &key, 5000, &stat));
  CHECK(stat.stored_bytes == sizeof(value) && stat.tier == 2);
  CHECK_CODE(PENSTOCK_OK, penstock_touch(client, ns, &key, 1, 5000, NULL));
  CHECK_CODE(PENSTOCK_OK, penstock_pin(client, ns, &key, 1, 1000, 5000, NULL));
  CHECK_CODE(PENSTOCK_OK, penstock_pin(client, ns, &key, 1, 0, 5000, NULL));
}

static void TestMatch(penstock_client* client, penstock_namespace* ns) {
  penstock_key keys[3];
  penstock_match_group group;
  penstock_match_result match;
  int i;
  memset(&group, 0, sizeof(group));
  for (i = 0; i < 3; ++i) {
    char identity = (char)('a' + i);
    CHECK_CODE(PENSTOCK_OK,
               penstock_prefix_key(ns, i == 0 ? NULL : &keys[i - 1], &identity, 1, &keys[i]));
    if (i < 2) {
      CHECK_CODE(PENSTOCK_OK, penstock_put(client, ns, &keys[i], "chunk", 5, 5000));
    }
  }
  group.ns = ns;
  group.keys = keys;
  group.key_count = 3;
  PENSTOCK_INIT(match);
  CHECK_CODE(PENSTOCK_OK, penstock_match(client, &group, 1, sizeof(group), 10000, 5000, &match));
  CHECK(match.chunks == 2 && match.bytes == 10 && match.reservation != 0);
  CHECK_CODE(PENSTOCK_OK, penstock_release(client, match.reservation, 5000));
  CHECK_CODE(PENSTOCK_FENCED, penstock_release(client, match.reservation, 5000));
}

static void TestOperations(penstock_client* client, penstock_namespace* ns) {
  char a[8], b[8];
  struct iovec pieces[2];
  penstock_fetch_item items[2];
  penstock_item_result result;
  penstock_operation* operation = NULL;
  int called = 0;
  pieces[0].iov_base = a;
  pieces[0].iov_len = 2;
  pieces[1].iov_base = b;
  pieces[1].iov_len = 6;
  memset(items, 0, sizeof(items));
  items[0].ns = items[1].ns = ns;
  CHECK_CODE(PENSTOCK_OK, penstock_prefix_key(ns, NULL, "a", 1, &items[0].key));
  CHECK_CODE(PENSTOCK_OK, penstock_named_key(ns, "not there", &items[1].key));
  items[0].pieces = items[1].pieces = pieces;
  items[0].piece_count = items[1].piece_count = 2;
  CHECK_CODE(PENSTOCK_OK, penstock_fetch_start(client, items, 2, sizeof(items[0]), NULL, 5000, NULL,
                                               NULL, &operation));
  CHECK_CODE(PENSTOCK_OK, penstock_operation_wait(operation, 5000));
  CHECK_CODE(PENSTOCK_OK, penstock_operation_status(operation));
  CHECK(penstock_operation_item_count(operation) == 2);
  PENSTOCK_INIT(result);
  CHECK_CODE(PENSTOCK_OK, penstock_operation_item(operation, 0, &result));
  CHECK(result.code == PENSTOCK_OK && result.bytes == 5);
  CHECK(memcmp(a, "ch", 2) == 0 && memcmp(b, "unk", 3) == 0);
  CHECK_CODE(PENSTOCK_OK, penstock_operation_item(operation, 1, &result));
  CHECK(result.code == PENSTOCK_MISS);
  CHECK_CODE(PENSTOCK_INVALID_ARGUMENT, penstock_operation_item(operation, 2, &result));
  penstock_operation_cancel(operation);
  penstock_operation_free(operation);
  CHECK_CODE(PENSTOCK_OK, penstock_fetch_start(client, items, 2, sizeof(items[0]), NULL, 5000,
                                               Called, &called, &operation));
  while (__atomic_load_n(&called, __ATOMIC_SEQ_CST) == 0) {
    CHECK_CODE(PENSTOCK_OK, penstock_ping(client, 5000));
  }
  CHECK(called == 1);
}

static void TestWithDaemon(const char* address) {
  penstock_client* client = NULL;
  penstock_client_options options;
  penstock_client_stats stats;
  penstock_namespace* ns;
  PENSTOCK_INIT(options);
  options.address = address;
  options.name = "client_c_test";
  CHECK_CODE(PENSTOCK_OK, penstock_client_create(&options, &client));
  CHECK_CODE(PENSTOCK_OK, penstock_client_wait_connected(client, 10000));
  ns = OpenTest(client);
  CHECK_CODE(PENSTOCK_OK, penstock_ping(client, 5000));
  TestValues(client, ns);
  TestMatch(client, ns);
  TestOperations(client, ns);
  PENSTOCK_INIT(stats);
  CHECK_CODE(PENSTOCK_OK, penstock_client_get_stats(client, &stats));
  CHECK(stats.connected == 1 && stats.in_flight == 0 && stats.checksum_failures == 0);
  penstock_namespace_free(ns);
  penstock_client_free(client);
}

int main(int argc, char** argv) {
  TestCodes();
  TestNulls();
  TestWithoutDaemon();
  if (argc > 1) TestWithDaemon(argv[1]);
  if (failures > 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures > 0 ? 1 : 0;
}
