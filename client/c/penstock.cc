// penstock.h: codes, clients, namespaces, keys, and everything about operations that is the same
// for all of them. The calls that move chunks are in transfers.cc.

#include "client/c/penstock.h"

#include <new>

#include "client/c/handles.h"

namespace penstock::c {
namespace {

// Kept for the thread that asks; a fixed buffer, because it must also hold "out of memory".
thread_local char last_error[512] = "";

}  // namespace

penstock_code Report(const Status& status) noexcept {
  if (!status.ok()) {
    const std::string_view name = CodeName(status.code());
    std::snprintf(last_error, sizeof(last_error), "%.*s%s%s", static_cast<int>(name.size()),
                  name.data(), status.message().empty() ? "" : ": ", status.message().c_str());
  }
  return static_cast<penstock_code>(status.code());
}

penstock_code BadArgument(const char* what) noexcept {
  std::snprintf(last_error, sizeof(last_error), "INVALID_ARGUMENT: %s", what);
  return PENSTOCK_INVALID_ARGUMENT;
}

}  // namespace penstock::c

using penstock::Code;
using penstock::Status;
using penstock::c::BadArgument;
using penstock::c::CopyIn;
using penstock::c::CopyOut;
using penstock::c::Guarded;
using penstock::c::OrEmpty;
using penstock::c::Report;

const char* penstock_version(void) { return PENSTOCK_VERSION; }

namespace {

// Numbers that do not fit a Code must not become another one.
Code ToCode(penstock_code code) {
  return static_cast<Code>(code < 0 || code >= penstock::kCodeCount ? penstock::kCodeCount : code);
}

}  // namespace

const char* penstock_code_name(penstock_code code) {
  return penstock::CodeName(ToCode(code)).data();
}

const char* penstock_code_advice(penstock_code code) {
  return penstock::CodeAdvice(ToCode(code)).data();
}

const char* penstock_last_error(void) { return penstock::c::last_error; }

penstock_code penstock_client_create(const penstock_client_options* options,
                                     penstock_client** client) {
  if (client == nullptr) return BadArgument("client is NULL");
  *client = nullptr;
  if (options != nullptr && options->struct_size == 0) {
    return BadArgument("options->struct_size is 0: use PENSTOCK_INIT");
  }
  return Guarded([&]() -> penstock_code {
    const penstock_client_options in = CopyIn(options);
    penstock::ClientOptions out;
    if (in.address != nullptr) out.address = in.address;
    if (in.wire != nullptr) out.wire = in.wire;
    if (in.tenant != nullptr) out.tenant = in.tenant;
    if (in.name != nullptr) out.name = in.name;
    if (in.streams != 0) out.streams = in.streams;
    if (in.max_in_flight != 0) out.max_in_flight = in.max_in_flight;
    const auto millis = [](uint32_t from, penstock::Duration& to) {
      if (from != 0) to = penstock::c::Millis(from);
    };
    millis(in.connect_timeout_ms, out.connect_timeout);
    millis(in.reconnect_min_ms, out.reconnect_min);
    millis(in.reconnect_max_ms, out.reconnect_max);
    millis(in.patience_ms, out.patience);
    auto created = penstock::Client::Create(out);
    if (!created.ok()) return Report(created.status());
    *client = new penstock_client{std::move(created).value()};
    return PENSTOCK_OK;
  });
}

void penstock_client_free(penstock_client* client) { delete client; }

penstock_code penstock_client_wait_connected(penstock_client* client, uint32_t timeout_ms) {
  if (client == nullptr) return BadArgument("client is NULL");
  return Guarded([&]() -> penstock_code {
    if (client->client->WaitConnected(penstock::c::After(timeout_ms))) return PENSTOCK_OK;
    return Report(Status(Code::kDisconnected, client->client->stats().last_error));
  });
}

penstock_code penstock_client_get_stats(penstock_client* client, penstock_client_stats* stats) {
  if (client == nullptr || stats == nullptr) return BadArgument("client or stats is NULL");
  return Guarded([&]() -> penstock_code {
    const penstock::ClientStats in = client->client->stats();
    penstock_client_stats out = {};
    out.connected = in.connected ? 1 : 0;
    out.in_flight = in.in_flight;
    out.daemon_incarnation = in.daemon_incarnation;
    out.connects = in.connects;
    out.disconnects = in.disconnects;
    out.daemon_restarts = in.daemon_restarts;
    out.operations = in.operations;
    out.failed_operations = in.failed_operations;
    out.cancelled_operations = in.cancelled_operations;
    out.fetched_chunks = in.fetched_chunks;
    out.fetched_bytes = in.fetched_bytes;
    out.missed_chunks = in.missed_chunks;
    out.stored_chunks = in.stored_chunks;
    out.stored_bytes = in.stored_bytes;
    out.checksum_failures = in.checksum_failures;
    CopyOut(out, stats);
    return PENSTOCK_OK;
  });
}

penstock_code penstock_client_register(penstock_client* client, void* memory, size_t bytes,
                                       uint64_t* registration) {
  if (client == nullptr || registration == nullptr) return BadArgument("NULL argument");
  return Guarded([&]() -> penstock_code {
    const auto registered = client->client->Register(memory, bytes);
    if (!registered.ok()) return Report(registered.status());
    *registration = *registered;
    return PENSTOCK_OK;
  });
}

penstock_code penstock_client_unregister(penstock_client* client, uint64_t registration) {
  if (client == nullptr) return BadArgument("client is NULL");
  return Guarded(
      [&]() -> penstock_code { return Report(client->client->Unregister(registration)); });
}

penstock_code penstock_namespace_open(penstock_client* client,
                                      const penstock_descriptor* descriptor,
                                      penstock_namespace** ns) {
  if (client == nullptr || descriptor == nullptr || ns == nullptr) {
    return BadArgument("NULL argument");
  }
  *ns = nullptr;
  return Guarded([&]() -> penstock_code {
    const penstock_descriptor in = CopyIn(descriptor);
    penstock::NamespaceDescriptor out;
    out.tenant = OrEmpty(in.tenant);
    out.tenant_salt = OrEmpty(in.tenant_salt);
    out.model = OrEmpty(in.model);
    out.model_revision = OrEmpty(in.model_revision);
    out.kv_dtype = OrEmpty(in.kv_dtype);
    out.kv_scale_mode = OrEmpty(in.kv_scale_mode);
    out.layout = OrEmpty(in.layout);
    out.block_tokens = in.block_tokens;
    out.chunk_tokens = in.chunk_tokens;
    const auto size = [](uint32_t given) { return given == 0 ? 1 : given; };
    out.tp_rank = in.tp_rank;
    out.tp_size = size(in.tp_size);
    out.pp_rank = in.pp_rank;
    out.pp_size = size(in.pp_size);
    out.dcp_rank = in.dcp_rank;
    out.dcp_size = size(in.dcp_size);
    out.group = in.group;
    out.group_kind = OrEmpty(in.group_kind);
    out.adapter = OrEmpty(in.adapter);
    out.adapter_generation = in.adapter_generation;
    if (in.extension == nullptr && in.extension_count > 0) return BadArgument("extension is NULL");
    for (size_t i = 0; i < in.extension_count; ++i) {
      out.extension[OrEmpty(in.extension[i].name)] = OrEmpty(in.extension[i].value);
    }
    auto opened = client->client->OpenNamespace(out);
    if (!opened.ok()) return Report(opened.status());
    *ns = new penstock_namespace{std::move(opened).value()};
    return PENSTOCK_OK;
  });
}

void penstock_namespace_free(penstock_namespace* ns) { delete ns; }

penstock_code penstock_namespace_fingerprint(const penstock_namespace* ns,
                                             penstock_key* fingerprint) {
  if (ns == nullptr || fingerprint == nullptr) return BadArgument("NULL argument");
  *fingerprint = penstock::c::FromKey(ns->ns.fingerprint());
  return PENSTOCK_OK;
}

namespace {

std::optional<penstock::ChunkKey> Parent(const penstock_key* parent) {
  if (parent == nullptr) return std::nullopt;
  return penstock::c::ToKey(*parent);
}

}  // namespace

penstock_code penstock_prefix_key(const penstock_namespace* ns, const penstock_key* parent,
                                  const void* identity, size_t identity_bytes, penstock_key* key) {
  if (ns == nullptr || key == nullptr || (identity == nullptr && identity_bytes > 0)) {
    return BadArgument("NULL argument");
  }
  return Guarded([&]() -> penstock_code {
    const penstock::ByteSpan bytes(static_cast<const std::byte*>(identity), identity_bytes);
    *key = penstock::c::FromKey(penstock::PrefixKey(ns->ns.fingerprint(), Parent(parent), bytes));
    return PENSTOCK_OK;
  });
}

penstock_code penstock_tokens_key(const penstock_namespace* ns, const penstock_key* parent,
                                  const uint32_t* tokens, size_t token_count, penstock_key* key) {
  if (ns == nullptr || key == nullptr || (tokens == nullptr && token_count > 0)) {
    return BadArgument("NULL argument");
  }
  return Guarded([&]() -> penstock_code {
    *key = penstock::c::FromKey(penstock::PrefixTokensKey(ns->ns.fingerprint(), Parent(parent),
                                                          std::span(tokens, token_count)));
    return PENSTOCK_OK;
  });
}

penstock_code penstock_named_key(const penstock_namespace* ns, const char* name,
                                 penstock_key* key) {
  if (ns == nullptr || name == nullptr || key == nullptr) return BadArgument("NULL argument");
  return Guarded([&]() -> penstock_code {
    *key = penstock::c::FromKey(penstock::NamedKey(ns->ns.fingerprint(), name));
    return PENSTOCK_OK;
  });
}

int32_t penstock_operation_done(const penstock_operation* operation) {
  return operation != nullptr && operation->Finished() != nullptr ? 1 : 0;
}

penstock_code penstock_operation_wait(penstock_operation* operation, uint32_t timeout_ms) {
  if (operation == nullptr) return BadArgument("operation is NULL");
  if (operation->Finished() != nullptr) return PENSTOCK_OK;
  return Guarded([&]() -> penstock_code {
    if (operation->handle->Wait(penstock::c::After(timeout_ms))) return PENSTOCK_OK;
    return Report(Status(Code::kDeadlineExceeded, "the operation goes on"));
  });
}

void penstock_operation_cancel(penstock_operation* operation) {
  if (operation == nullptr || operation->Finished() != nullptr) return;
  Guarded([&]() -> penstock_code {
    operation->handle->Cancel();
    return PENSTOCK_OK;
  });
}

void penstock_operation_free(penstock_operation* operation) {
  if (operation == nullptr) return;
  operation->freed.store(true);
  if (operation->Finished() == nullptr) operation->handle.reset();  // Cancels and waits.
  // The last hold, unless the callback still has one.
  const std::shared_ptr<penstock_operation> hold = std::move(operation->self);
}

penstock_code penstock_operation_status(const penstock_operation* operation) {
  if (operation == nullptr) return BadArgument("operation is NULL");
  const penstock::Operation* finished = operation->Finished();
  if (finished == nullptr) return PENSTOCK_BUSY;
  return static_cast<penstock_code>(finished->status().code());
}

const char* penstock_operation_message(const penstock_operation* operation) {
  const penstock::Operation* finished = operation == nullptr ? nullptr : operation->Finished();
  return finished == nullptr ? "" : finished->status().message().c_str();
}

size_t penstock_operation_item_count(const penstock_operation* operation) {
  const penstock::Operation* finished = operation == nullptr ? nullptr : operation->Finished();
  return finished == nullptr ? 0 : finished->items().size();
}

penstock_code penstock_operation_item(const penstock_operation* operation, size_t index,
                                      penstock_item_result* result) {
  if (operation == nullptr || result == nullptr) return BadArgument("NULL argument");
  const penstock::Operation* finished = operation->Finished();
  if (finished == nullptr) return PENSTOCK_BUSY;
  if (index >= finished->items().size()) return BadArgument("no item of this number");
  const penstock::ItemResult& item = finished->items()[index];
  penstock_item_result out = {};
  out.code = static_cast<penstock_code>(item.status.code());
  out.token_count = item.token_count;
  out.bytes = item.bytes;
  CopyOut(out, result);
  return PENSTOCK_OK;
}

const char* penstock_operation_item_message(const penstock_operation* operation, size_t index) {
  const penstock::Operation* finished = operation == nullptr ? nullptr : operation->Finished();
  if (finished == nullptr || index >= finished->items().size()) return "";
  return finished->items()[index].status.message().c_str();
}
