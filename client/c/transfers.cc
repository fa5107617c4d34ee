// penstock.h: match, fetch, store, and the calls about retention.

#include "client/c/handles.h"
#include "client/c/penstock.h"

using penstock::Code;
using penstock::Status;
using penstock::c::After;
using penstock::c::BadArgument;
using penstock::c::CopyIn;
using penstock::c::CopyOut;
using penstock::c::Element;
using penstock::c::Guarded;
using penstock::c::Report;
using penstock::c::ToKey;

namespace {

// Makes the C handle around what `start` begins. `start` gets the function to call when done.
template <typename Start>
penstock_code Begin(penstock_callback callback, void* user, penstock_operation** operation,
                    Start start) {
  const auto made = std::make_shared<penstock_operation>();
  made->self = made;
  penstock::OnDone on_done;
  if (callback != nullptr) {
    on_done = [made, callback, user](penstock::Operation& done) {
      if (made->freed.load()) return;
      made->in_callback.store(&done, std::memory_order_release);
      callback(made.get(), user);
    };
  }
  *operation = made.get();
  try {
    made->handle = start(std::move(on_done));
  } catch (...) {
    *operation = nullptr;
    made->self.reset();
    throw;
  }
  return PENSTOCK_OK;
}

std::vector<iovec> ToPieces(const iovec* pieces, size_t count) {
  return pieces == nullptr ? std::vector<iovec>{} : std::vector<iovec>(pieces, pieces + count);
}

penstock::Namespace ToNamespace(const penstock_namespace* ns) {
  return ns == nullptr ? penstock::Namespace() : ns->ns;
}

// Waits for what has its own deadline, and gives the first thing that went wrong.
penstock_code Conclude(penstock::Operation& operation, penstock_code* codes) {
  operation.Wait(penstock::Deadline::After(penstock::Deadline::kMax));
  Status first = operation.status();
  for (size_t i = 0; i < operation.items().size(); ++i) {
    const Status& item = operation.items()[i].status;
    if (codes != nullptr) codes[i] = static_cast<penstock_code>(item.code());
    if (first.ok()) first = item;
  }
  return Report(first);
}

std::vector<penstock::ChunkKey> ToKeys(const penstock_key* keys, size_t count) {
  std::vector<penstock::ChunkKey> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = ToKey(keys[i]);
  return out;
}

std::vector<penstock::FetchItem> ToFetchItems(const penstock_fetch_item* items, size_t count,
                                              size_t size) {
  std::vector<penstock::FetchItem> out(count);
  for (size_t i = 0; i < count; ++i) {
    const penstock_fetch_item item = Element(items, i, size);
    out[i] = {ToNamespace(item.ns), ToKey(item.key), ToPieces(item.pieces, item.piece_count)};
  }
  return out;
}

std::vector<penstock::StoreItem> ToStoreItems(const penstock_store_item* items, size_t count,
                                              size_t size) {
  std::vector<penstock::StoreItem> out(count);
  for (size_t i = 0; i < count; ++i) {
    const penstock_store_item item = Element(items, i, size);
    out[i].ns = ToNamespace(item.ns);
    out[i].key = ToKey(item.key);
    out[i].pieces = ToPieces(item.pieces, item.piece_count);
    if (item.parent != nullptr) out[i].parent = ToKey(*item.parent);
    out[i].token_count = item.token_count;
    out[i].manifest_flags = item.manifest_flags;
    out[i].tag = item.tag;
  }
  return out;
}

penstock::FetchOptions ToFetchOptions(const penstock_fetch_options* options) {
  const penstock_fetch_options in = CopyIn(options);
  penstock::FetchOptions out;
  out.reservation = in.reservation;
  out.tag = in.tag;
  out.accept_inexact = in.accept_inexact != 0;
  if (in.selection != nullptr) {
    const auto* bytes = static_cast<const std::byte*>(in.selection);
    out.selection.assign(bytes, bytes + in.selection_bytes);
  }
  return out;
}

// Error texts for the arguments that every call on arrays shares; null when they are fine.
const char* WhatIsWrong(const void* client, const void* array, size_t count, size_t element) {
  if (client == nullptr) return "client is NULL";
  if (array == nullptr && count > 0) return "the array is NULL";
  if (element == 0 && count > 0) return "the size of an element is 0";
  return nullptr;
}

penstock::OperationPtr StartMatch(penstock_client* client, const penstock_match_group* groups,
                                  size_t group_count, size_t group_size, uint32_t reserve_ms,
                                  uint32_t timeout_ms, penstock::OnDone on_done) {
  std::vector<penstock::MatchGroup> out(group_count);
  for (size_t i = 0; i < group_count; ++i) {
    const penstock_match_group group = Element(groups, i, group_size);
    out[i].ns = ToNamespace(group.ns);
    out[i].keys = ToKeys(group.keys, group.keys == nullptr ? 0 : group.key_count);
    out[i].window_chunks = group.window_chunks;
  }
  return client->client->Match(std::move(out), penstock::c::Millis(reserve_ms), After(timeout_ms),
                               std::move(on_done));
}

void FillMatch(const penstock::MatchOutcome& match, penstock_match_result* result) {
  penstock_match_result out = {};
  out.chunks = match.chunks;
  out.bytes = match.bytes;
  out.reservation = match.reservation;
  CopyOut(out, result);
}

}  // namespace

penstock_code penstock_match_start(penstock_client* client, const penstock_match_group* groups,
                                   size_t group_count, size_t group_size, uint32_t reserve_ms,
                                   uint32_t timeout_ms, penstock_callback callback, void* user,
                                   penstock_operation** operation) {
  const char* wrong = WhatIsWrong(client, groups, group_count, group_size);
  if (wrong != nullptr || operation == nullptr) return BadArgument(wrong ? wrong : "operation");
  return Guarded([&]() -> penstock_code {
    return Begin(callback, user, operation, [&](penstock::OnDone on_done) {
      return StartMatch(client, groups, group_count, group_size, reserve_ms, timeout_ms,
                        std::move(on_done));
    });
  });
}

penstock_code penstock_operation_match(const penstock_operation* operation,
                                       penstock_match_result* result) {
  if (operation == nullptr || result == nullptr) return BadArgument("NULL argument");
  const penstock::Operation* finished = operation->Finished();
  if (finished == nullptr) return PENSTOCK_BUSY;
  FillMatch(finished->match(), result);
  return PENSTOCK_OK;
}

penstock_code penstock_match(penstock_client* client, const penstock_match_group* groups,
                             size_t group_count, size_t group_size, uint32_t reserve_ms,
                             uint32_t timeout_ms, penstock_match_result* result) {
  const char* wrong = WhatIsWrong(client, groups, group_count, group_size);
  if (wrong != nullptr || result == nullptr) return BadArgument(wrong ? wrong : "result is NULL");
  return Guarded([&]() -> penstock_code {
    const auto match =
        StartMatch(client, groups, group_count, group_size, reserve_ms, timeout_ms, {});
    const penstock_code code = Conclude(*match, nullptr);
    FillMatch(match->match(), result);
    return code;
  });
}

penstock_code penstock_release(penstock_client* client, uint64_t reservation, uint32_t timeout_ms) {
  if (client == nullptr) return BadArgument("client is NULL");
  return Guarded(
      [&] { return Conclude(*client->client->Release(reservation, After(timeout_ms)), nullptr); });
}

penstock_code penstock_fetch_start(penstock_client* client, const penstock_fetch_item* items,
                                   size_t item_count, size_t item_size,
                                   const penstock_fetch_options* options, uint32_t timeout_ms,
                                   penstock_callback callback, void* user,
                                   penstock_operation** operation) {
  const char* wrong = WhatIsWrong(client, items, item_count, item_size);
  if (wrong != nullptr || operation == nullptr) return BadArgument(wrong ? wrong : "operation");
  return Guarded([&]() -> penstock_code {
    return Begin(callback, user, operation, [&](penstock::OnDone on_done) {
      return client->client->Fetch(ToFetchItems(items, item_count, item_size),
                                   ToFetchOptions(options), After(timeout_ms), std::move(on_done));
    });
  });
}

penstock_code penstock_store_start(penstock_client* client, const penstock_store_item* items,
                                   size_t item_count, size_t item_size, int32_t replace,
                                   uint32_t timeout_ms, penstock_callback callback, void* user,
                                   penstock_operation** operation) {
  const char* wrong = WhatIsWrong(client, items, item_count, item_size);
  if (wrong != nullptr || operation == nullptr) return BadArgument(wrong ? wrong : "operation");
  return Guarded([&]() -> penstock_code {
    return Begin(callback, user, operation, [&](penstock::OnDone on_done) {
      return client->client->Store(ToStoreItems(items, item_count, item_size), replace != 0,
                                   After(timeout_ms), std::move(on_done));
    });
  });
}

penstock_code penstock_fetch(penstock_client* client, const penstock_fetch_item* items,
                             size_t item_count, size_t item_size,
                             const penstock_fetch_options* options, uint32_t timeout_ms,
                             penstock_code* codes) {
  const char* wrong = WhatIsWrong(client, items, item_count, item_size);
  if (wrong != nullptr) return BadArgument(wrong);
  return Guarded([&]() -> penstock_code {
    return Conclude(*client->client->Fetch(ToFetchItems(items, item_count, item_size),
                                           ToFetchOptions(options), After(timeout_ms)),
                    codes);
  });
}

penstock_code penstock_store(penstock_client* client, const penstock_store_item* items,
                             size_t item_count, size_t item_size, int32_t replace,
                             uint32_t timeout_ms, penstock_code* codes) {
  const char* wrong = WhatIsWrong(client, items, item_count, item_size);
  if (wrong != nullptr) return BadArgument(wrong);
  return Guarded([&]() -> penstock_code {
    return Conclude(*client->client->Store(ToStoreItems(items, item_count, item_size), replace != 0,
                                           After(timeout_ms)),
                    codes);
  });
}

penstock_code penstock_get(penstock_client* client, const penstock_namespace* ns,
                           const penstock_key* key, void* buffer, size_t capacity,
                           uint32_t timeout_ms, size_t* bytes) {
  if (client == nullptr || key == nullptr) return BadArgument("client or key is NULL");
  return Guarded([&]() -> penstock_code {
    std::vector<penstock::FetchItem> items(1);
    items[0] = {ToNamespace(ns), ToKey(*key), {{buffer, capacity}}};
    const auto fetch = client->client->Fetch(std::move(items), {}, After(timeout_ms));
    const penstock_code code = Conclude(*fetch, nullptr);
    if (bytes != nullptr) *bytes = fetch->items()[0].bytes;
    return code;
  });
}

penstock_code penstock_put(penstock_client* client, const penstock_namespace* ns,
                           const penstock_key* key, const void* value, size_t bytes,
                           uint32_t timeout_ms) {
  if (client == nullptr || key == nullptr) return BadArgument("client or key is NULL");
  return Guarded([&]() -> penstock_code {
    std::vector<penstock::StoreItem> items(1);
    items[0].ns = ToNamespace(ns);
    items[0].key = ToKey(*key);
    items[0].pieces = {{const_cast<void*>(value), bytes}};
    return Conclude(*client->client->Store(std::move(items), false, After(timeout_ms)), nullptr);
  });
}

penstock_code penstock_touch(penstock_client* client, const penstock_namespace* ns,
                             const penstock_key* keys, size_t key_count, uint32_t timeout_ms,
                             penstock_code* codes) {
  const char* wrong = WhatIsWrong(client, keys, key_count, sizeof(*keys));
  if (wrong != nullptr) return BadArgument(wrong);
  return Guarded([&]() -> penstock_code {
    return Conclude(
        *client->client->Touch(ToNamespace(ns), ToKeys(keys, key_count), After(timeout_ms)), codes);
  });
}

penstock_code penstock_pin(penstock_client* client, const penstock_namespace* ns,
                           const penstock_key* keys, size_t key_count, uint32_t ttl_ms,
                           uint32_t timeout_ms, penstock_code* codes) {
  const char* wrong = WhatIsWrong(client, keys, key_count, sizeof(*keys));
  if (wrong != nullptr) return BadArgument(wrong);
  return Guarded([&]() -> penstock_code {
    return Conclude(*client->client->Pin(ToNamespace(ns), ToKeys(keys, key_count),
                                         penstock::c::Millis(ttl_ms), After(timeout_ms)),
                    codes);
  });
}

penstock_code penstock_drop(penstock_client* client, const penstock_namespace* ns,
                            const penstock_key* keys, size_t key_count, uint32_t timeout_ms,
                            penstock_code* codes) {
  const char* wrong = WhatIsWrong(client, keys, key_count, sizeof(*keys));
  if (wrong != nullptr) return BadArgument(wrong);
  return Guarded([&]() -> penstock_code {
    return Conclude(
        *client->client->Drop(ToNamespace(ns), ToKeys(keys, key_count), After(timeout_ms)), codes);
  });
}

penstock_code penstock_stat(penstock_client* client, const penstock_namespace* ns,
                            const penstock_key* key, uint32_t timeout_ms,
                            penstock_stat_result* result) {
  if (client == nullptr || key == nullptr || result == nullptr) return BadArgument("NULL argument");
  return Guarded([&]() -> penstock_code {
    const auto stat = client->client->Stat(ToNamespace(ns), ToKey(*key), After(timeout_ms));
    const penstock_code code = Conclude(*stat, nullptr);
    penstock_stat_result out = {};
    out.stored_bytes = stat->stat().stored_bytes;
    out.token_count = stat->stat().token_count;
    out.pins = stat->stat().pins;
    out.children = stat->stat().children;
    out.idle_ms = stat->stat().idle_ms;
    out.tier = static_cast<uint32_t>(stat->stat().tier);
    CopyOut(out, result);
    return code;
  });
}

penstock_code penstock_ping(penstock_client* client, uint32_t timeout_ms) {
  if (client == nullptr) return BadArgument("client is NULL");
  return Guarded([&]() -> penstock_code {
    return Conclude(*client->client->Ping(After(timeout_ms)), nullptr);
  });
}
