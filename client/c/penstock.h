/* Penstock: the client of a penstockd, for C and everything that speaks C.
 *
 * Rules of this header
 *   - Every call reports a penstock_code: the same numbers as on the wire, in C++ and in Python.
 *     Where a sentence helps, penstock_last_error() has it, for the calling thread.
 *   - Structs that may grow begin with `struct_size`, or travel in arrays with the size of one
 *     element: set it with sizeof and zero the rest, and a program built against this header keeps
 *     working with a later library. PENSTOCK_INIT(x) does both.
 *   - Handles are opaque. Who calls ..._create, ..._open or ..._start calls ..._free.
 *   - Every function may be called from any thread, but for freeing a handle that another thread
 *     still uses.
 *   - Time is given in milliseconds from now; nothing waits for ever (24 hours at most).
 *   - Memory named by an operation belongs to it until it is done, or penstock_operation_cancel()
 *     or penstock_operation_free() has returned: then nothing touches it any more.
 *   - NULL for a handle or an output that is required gives PENSTOCK_INVALID_ARGUMENT.
 */

#ifndef PENSTOCK_CLIENT_C_PENSTOCK_H_
#define PENSTOCK_CLIENT_C_PENSTOCK_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PENSTOCK_API __attribute__((visibility("default")))
#else
#define PENSTOCK_API
#endif

/* Zeroes a struct and says how large it is. */
#define PENSTOCK_INIT(object)              \
  do {                                     \
    memset(&(object), 0, sizeof(object));  \
    (object).struct_size = sizeof(object); \
  } while (0)

/* --- Codes ------------------------------------------------------------------------------------ */

typedef int32_t penstock_code;

enum {
  PENSTOCK_OK = 0,
  PENSTOCK_MISS = 1,              /* Not stored, or evicted. Recompute. */
  PENSTOCK_ALREADY_EXISTS = 2,    /* A committed chunk is there; yours was not needed. */
  PENSTOCK_BUFFER_TOO_SMALL = 3,  /* The value is longer than the destination. */
  PENSTOCK_FORMAT_MISMATCH = 4,   /* Stored under another namespace or tag: treat as a miss. */
  PENSTOCK_CHECKSUM_MISMATCH = 5, /* Bytes differ from what was committed. Never delivered. */
  PENSTOCK_BUSY = 6,              /* Retry later, or recompute. */
  PENSTOCK_ALL_PINNED = 7,        /* The daemon is full and everything in it is in use. */
  PENSTOCK_DEADLINE_EXCEEDED = 8,
  PENSTOCK_CANCELLED = 9,
  PENSTOCK_DISCONNECTED = 10, /* The daemon is away. The client reconnects by itself. */
  PENSTOCK_FENCED = 11,       /* A handle of a former life, or one that expired. */
  PENSTOCK_INVALID_ARGUMENT = 12,
  PENSTOCK_VERSION_SKEW = 13,
  PENSTOCK_TOO_LARGE = 14,
  PENSTOCK_BAD_BUFFER = 15, /* Memory that is not mapped, or not writable. */
  PENSTOCK_UNIMPLEMENTED = 16,
  PENSTOCK_RESOURCE_EXHAUSTED = 17,
  PENSTOCK_PERMISSION_DENIED = 18,
  PENSTOCK_IO_ERROR = 19,
  PENSTOCK_INTERNAL = 20,
  PENSTOCK_CORRUPT_MESSAGE = 21
};

/* "0.1.0" */
PENSTOCK_API const char* penstock_version(void);
/* "MISS"; "UNKNOWN" for a number that this library does not know. Never NULL. */
PENSTOCK_API const char* penstock_code_name(penstock_code code);
/* One sentence: what the caller can do. Empty for PENSTOCK_OK. Never NULL. */
PENSTOCK_API const char* penstock_code_advice(penstock_code code);
/* Why the last call of this thread that returned an error did so. Valid until the next call of this
 * library on the same thread. Never NULL. */
PENSTOCK_API const char* penstock_last_error(void);

/* --- Client ----------------------------------------------------------------------------------- */

typedef struct penstock_client penstock_client;

typedef struct penstock_client_options {
  size_t struct_size;
  /* NULL or 0 in any of these: the default. */
  const char* address; /* "tcp://127.0.0.1:7411" (default), "unix:///path". */
  const char* wire;    /* "auto" (default), "local", "tcp", "ucx". */
  const char* tenant;  /* "default". */
  const char* name;    /* Shown by `penstock top`; default program:pid. */
  uint32_t streams;
  uint32_t max_in_flight;
  uint32_t connect_timeout_ms;
  uint32_t reconnect_min_ms;
  uint32_t reconnect_max_ms;
  uint32_t patience_ms; /* How long operations wait for a daemon that went away. */
} penstock_client_options;

typedef struct penstock_client_stats {
  size_t struct_size;
  int32_t connected;
  uint32_t in_flight;
  uint64_t daemon_incarnation;
  uint64_t connects;
  uint64_t disconnects;
  uint64_t daemon_restarts;
  uint64_t operations;
  uint64_t failed_operations;
  uint64_t cancelled_operations;
  uint64_t fetched_chunks;
  uint64_t fetched_bytes;
  uint64_t missed_chunks;
  uint64_t stored_chunks;
  uint64_t stored_bytes;
  uint64_t checksum_failures;
} penstock_client_stats;

/* Starts connecting in the background; a daemon that is away is no error. `options` may be NULL. */
PENSTOCK_API penstock_code penstock_client_create(const penstock_client_options* options,
                                                  penstock_client** client);
/* Cancels what is in flight, waits for it, disconnects. NULL is ignored. Operations stay readable
 * and must still be freed. Not from a callback. */
PENSTOCK_API void penstock_client_free(penstock_client* client);
/* PENSTOCK_OK once connected; PENSTOCK_DISCONNECTED, with the reason, when time was up first. */
PENSTOCK_API penstock_code penstock_client_wait_connected(penstock_client* client,
                                                          uint32_t timeout_ms);
/* REQUIRES: stats->struct_size is set. */
PENSTOCK_API penstock_code penstock_client_get_stats(penstock_client* client,
                                                     penstock_client_stats* stats);

/* Registers memory for wires that profit from it. Buffers need not be registered. */
PENSTOCK_API penstock_code penstock_client_register(penstock_client* client, void* memory,
                                                    size_t bytes, uint64_t* registration);
/* Returns when no operation uses the memory any more. */
PENSTOCK_API penstock_code penstock_client_unregister(penstock_client* client,
                                                      uint64_t registration);

/* --- Namespaces and keys ---------------------------------------------------------------------- */

typedef struct penstock_namespace penstock_namespace;

typedef struct penstock_key {
  uint8_t bytes[32];
} penstock_key;

typedef struct penstock_text_pair {
  const char* name;
  const char* value;
} penstock_text_pair;

/* Everything that decides whether KV bytes are interchangeable. Strings may be NULL (empty); sizes
 * of 0 mean 1. */
typedef struct penstock_descriptor {
  size_t struct_size;
  const char* tenant;
  const char* tenant_salt;
  const char* model;
  const char* model_revision;
  const char* kv_dtype;
  const char* kv_scale_mode;
  const char* layout;
  uint32_t block_tokens;
  uint32_t chunk_tokens;
  uint32_t tp_rank;
  uint32_t tp_size;
  uint32_t pp_rank;
  uint32_t pp_size;
  uint32_t dcp_rank;
  uint32_t dcp_size;
  uint32_t group;
  const char* group_kind;
  const char* adapter;
  uint64_t adapter_generation;
  const penstock_text_pair* extension;
  size_t extension_count;
} penstock_descriptor;

PENSTOCK_API penstock_code penstock_namespace_open(penstock_client* client,
                                                   const penstock_descriptor* descriptor,
                                                   penstock_namespace** ns);
/* May be freed while operations use it. The namespace is open until its last handle is freed and
   its operations are done; its chunks stay. NULL is ignored. */
PENSTOCK_API void penstock_namespace_free(penstock_namespace* ns);
PENSTOCK_API penstock_code penstock_namespace_fingerprint(const penstock_namespace* ns,
                                                          penstock_key* fingerprint);

/* A chunk of a prompt: `parent` is the key of the chunk before it, NULL for the first one;
 * `identity` tells its tokens from others with the same parent (an engine's block hash). */
PENSTOCK_API penstock_code penstock_prefix_key(const penstock_namespace* ns,
                                               const penstock_key* parent, const void* identity,
                                               size_t identity_bytes, penstock_key* key);
/* The same, for token ids. */
PENSTOCK_API penstock_code penstock_tokens_key(const penstock_namespace* ns,
                                               const penstock_key* parent, const uint32_t* tokens,
                                               size_t token_count, penstock_key* key);
/* An object with a name. */
PENSTOCK_API penstock_code penstock_named_key(const penstock_namespace* ns, const char* name,
                                              penstock_key* key);

/* --- Operations ------------------------------------------------------------------------------- */

typedef struct penstock_operation penstock_operation;

/* Called once, on the client's own thread, when the operation is done, unless it was freed before.
 * Must not block, and must neither free the client nor wait for another operation. */
typedef void (*penstock_callback)(penstock_operation* operation, void* user);

typedef struct penstock_item_result {
  size_t struct_size;
  penstock_code code;
  uint32_t token_count;
  uint64_t bytes; /* Fetch: delivered, or needed with PENSTOCK_BUFFER_TOO_SMALL. Store: stored. */
} penstock_item_result;

PENSTOCK_API int32_t penstock_operation_done(const penstock_operation* operation);
/* PENSTOCK_OK when done (whatever the outcome), PENSTOCK_DEADLINE_EXCEEDED when time was up first
 * (the operation goes on). */
PENSTOCK_API penstock_code penstock_operation_wait(penstock_operation* operation,
                                                   uint32_t timeout_ms);
/* Returns when nothing touches the operation's memory any more; bounded by about a second. */
PENSTOCK_API void penstock_operation_cancel(penstock_operation* operation);
/* Cancels what is not done. NULL is ignored. May be called from the operation's own callback. */
PENSTOCK_API void penstock_operation_free(penstock_operation* operation);

/* The rest of this section is about operations that are done; before, PENSTOCK_BUSY. */

/* Of the request as a whole; items may still differ. */
PENSTOCK_API penstock_code penstock_operation_status(const penstock_operation* operation);
/* Its sentence, valid as long as the operation. Never NULL. */
PENSTOCK_API const char* penstock_operation_message(const penstock_operation* operation);
/* As many as the call named, in its order. */
PENSTOCK_API size_t penstock_operation_item_count(const penstock_operation* operation);
/* REQUIRES: result->struct_size is set. */
PENSTOCK_API penstock_code penstock_operation_item(const penstock_operation* operation,
                                                   size_t index, penstock_item_result* result);
PENSTOCK_API const char* penstock_operation_item_message(const penstock_operation* operation,
                                                         size_t index);

/* --- Match ------------------------------------------------------------------------------------ */

typedef struct penstock_match_group {
  const penstock_namespace* ns;
  const penstock_key* keys; /* Of chunk 0, 1, 2, ...: the same number in every group. */
  size_t key_count;
  uint32_t window_chunks; /* 0: full attention. */
} penstock_match_group;

typedef struct penstock_match_result {
  size_t struct_size;
  uint32_t chunks;      /* Length of the longest stored prefix. */
  uint64_t bytes;       /* Of everything that a fetch of it needs. */
  uint64_t reservation; /* 0: none. */
} penstock_match_result;

/* `reserve_ms` 0: no reservation. */
PENSTOCK_API penstock_code penstock_match_start(penstock_client* client,
                                                const penstock_match_group* groups,
                                                size_t group_count, size_t group_size,
                                                uint32_t reserve_ms, uint32_t timeout_ms,
                                                penstock_callback callback, void* user,
                                                penstock_operation** operation);
PENSTOCK_API penstock_code penstock_operation_match(const penstock_operation* operation,
                                                    penstock_match_result* result);
/* Start and wait. REQUIRES: result->struct_size is set. */
PENSTOCK_API penstock_code penstock_match(penstock_client* client,
                                          const penstock_match_group* groups, size_t group_count,
                                          size_t group_size, uint32_t reserve_ms,
                                          uint32_t timeout_ms, penstock_match_result* result);
/* Gives a reservation back. PENSTOCK_FENCED when it is not there any more. */
PENSTOCK_API penstock_code penstock_release(penstock_client* client, uint64_t reservation,
                                            uint32_t timeout_ms);

/* --- Fetch and store -------------------------------------------------------------------------- */

typedef struct penstock_fetch_item {
  const penstock_namespace* ns;
  penstock_key key;
  const struct iovec* pieces; /* Where the bytes go, in order. */
  size_t piece_count;
} penstock_fetch_item;

typedef struct penstock_fetch_options {
  size_t struct_size;
  uint64_t reservation;
  uint64_t tag;          /* Must equal the stored one, unless that is 0. */
  const void* selection; /* Which segments: docs/formats/manifest.md. NULL: everything. */
  size_t selection_bytes;
  int32_t accept_inexact; /* Lossy or query-dependent bytes are welcome. */
} penstock_fetch_options;

typedef struct penstock_store_item {
  const penstock_namespace* ns;
  penstock_key key;
  const struct iovec* pieces; /* Where the bytes are, in order. */
  size_t piece_count;
  const penstock_key* parent; /* The chunk before this one; NULL: none. */
  uint32_t token_count;
  uint32_t manifest_flags;
  uint64_t tag;
} penstock_store_item;

/* `options` may be NULL. `item_size`: sizeof(penstock_fetch_item). */
PENSTOCK_API penstock_code penstock_fetch_start(penstock_client* client,
                                                const penstock_fetch_item* items, size_t item_count,
                                                size_t item_size,
                                                const penstock_fetch_options* options,
                                                uint32_t timeout_ms, penstock_callback callback,
                                                void* user, penstock_operation** operation);
/* The first committed chunk under a key wins (PENSTOCK_ALREADY_EXISTS), unless `replace`. What is
 * stored is what the memory held at the time of the call, or nothing. */
PENSTOCK_API penstock_code penstock_store_start(penstock_client* client,
                                                const penstock_store_item* items, size_t item_count,
                                                size_t item_size, int32_t replace,
                                                uint32_t timeout_ms, penstock_callback callback,
                                                void* user, penstock_operation** operation);

/* Start and wait. `codes` gets one code an item and may be NULL; the result is the status of the
 * request as a whole, or, when that is PENSTOCK_OK, of the first item that is not PENSTOCK_OK. */
PENSTOCK_API penstock_code penstock_fetch(penstock_client* client, const penstock_fetch_item* items,
                                          size_t item_count, size_t item_size,
                                          const penstock_fetch_options* options,
                                          uint32_t timeout_ms, penstock_code* codes);
PENSTOCK_API penstock_code penstock_store(penstock_client* client, const penstock_store_item* items,
                                          size_t item_count, size_t item_size, int32_t replace,
                                          uint32_t timeout_ms, penstock_code* codes);

/* One value in one buffer. `bytes` gets its length, also with PENSTOCK_BUFFER_TOO_SMALL. */
PENSTOCK_API penstock_code penstock_get(penstock_client* client, const penstock_namespace* ns,
                                        const penstock_key* key, void* buffer, size_t capacity,
                                        uint32_t timeout_ms, size_t* bytes);
PENSTOCK_API penstock_code penstock_put(penstock_client* client, const penstock_namespace* ns,
                                        const penstock_key* key, const void* value, size_t bytes,
                                        uint32_t timeout_ms);

/* --- Retention and the rest ------------------------------------------------------------------- */

typedef struct penstock_stat_result {
  size_t struct_size;
  uint64_t stored_bytes;
  uint32_t token_count;
  uint32_t pins;
  uint32_t children;
  uint32_t idle_ms;
  uint32_t tier; /* 1 gpu, 2 dram, 3 ssd, 4 another daemon. */
} penstock_stat_result;

/* The keys of a prefix, in order: everything after the first chunk that is not there is
 * PENSTOCK_MISS. `codes` as for penstock_fetch(). */
PENSTOCK_API penstock_code penstock_touch(penstock_client* client, const penstock_namespace* ns,
                                          const penstock_key* keys, size_t key_count,
                                          uint32_t timeout_ms, penstock_code* codes);
/* `ttl_ms` 0: unpin. */
PENSTOCK_API penstock_code penstock_pin(penstock_client* client, const penstock_namespace* ns,
                                        const penstock_key* keys, size_t key_count, uint32_t ttl_ms,
                                        uint32_t timeout_ms, penstock_code* codes);
PENSTOCK_API penstock_code penstock_drop(penstock_client* client, const penstock_namespace* ns,
                                         const penstock_key* keys, size_t key_count,
                                         uint32_t timeout_ms, penstock_code* codes);
/* REQUIRES: result->struct_size is set. */
PENSTOCK_API penstock_code penstock_stat(penstock_client* client, const penstock_namespace* ns,
                                         const penstock_key* key, uint32_t timeout_ms,
                                         penstock_stat_result* result);
/* A round trip to the daemon and back through its data thread. */
PENSTOCK_API penstock_code penstock_ping(penstock_client* client, uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif  // PENSTOCK_CLIENT_C_PENSTOCK_H_
