#include "client/python/binding/bind_client.h"

#include <pybind11/stl.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "client/python/binding/client_handle.h"
#include "client/python/binding/convert.h"
#include "client/python/binding/held_buffers.h"
#include "client/python/binding/operation_handle.h"
#include "client/python/binding/status_error.h"

namespace penstock::python {

namespace py = pybind11;

namespace {

constexpr int64_t kMaxU32 = std::numeric_limits<uint32_t>::max();

const Namespace& ToNamespace(py::handle object) {
  if (!py::isinstance<NamespaceHandle>(object)) {
    throw py::type_error("a penstock.Namespace is wanted (see Client.namespace())");
  }
  return object.cast<const NamespaceHandle&>().ns;
}

Deadline After(double seconds) { return Deadline::After(SecondsToDuration(seconds)); }

std::shared_ptr<ClientHandle> MakeClient(const std::string& address, const std::string& wire,
                                         const std::string& tenant, const std::string& name,
                                         double connect_timeout, double patience, uint32_t streams,
                                         uint32_t max_in_flight, bool verify_checksums) {
  ClientOptions options;
  options.address = address;
  options.wire = wire;
  options.tenant = tenant;
  options.name = name;
  options.connect_timeout = SecondsToDuration(connect_timeout);
  options.patience = SecondsToDuration(patience);
  options.streams = streams;
  options.max_in_flight = max_in_flight;
  options.verify_checksums = verify_checksums;
  return std::make_shared<ClientHandle>(options);
}

py::dict StatsOf(ClientHandle& self) {
  const ClientStats stats = self.stats();
  py::dict out;
  out["connected"] = stats.connected;
  out["incarnation"] = stats.daemon_incarnation;
  out["daemon_software"] = stats.daemon_software;
  out["wire"] = stats.wire;
  out["in_flight"] = stats.in_flight;
  out["connects"] = stats.connects;
  out["disconnects"] = stats.disconnects;
  out["daemon_restarts"] = stats.daemon_restarts;
  out["operations"] = stats.operations;
  out["failed_operations"] = stats.failed_operations;
  out["cancelled_operations"] = stats.cancelled_operations;
  out["fetched_chunks"] = stats.fetched_chunks;
  out["fetched_bytes"] = stats.fetched_bytes;
  out["missed_chunks"] = stats.missed_chunks;
  out["stored_chunks"] = stats.stored_chunks;
  out["stored_bytes"] = stats.stored_bytes;
  out["checksum_failures"] = stats.checksum_failures;
  out["last_error"] = stats.last_error;
  return out;
}

NamespaceHandle OpenNamespace(ClientHandle& self, py::object descriptor) {
  const NamespaceDescriptor value = ToDescriptor(descriptor);
  Result<Namespace> ns = self.With([&](Client& client) { return client.OpenNamespace(value); });
  return {ValueOrThrow(std::move(ns)), std::move(descriptor)};
}

std::unique_ptr<OperationHandle> Match(ClientHandle& self, py::handle groups,
                                       std::optional<double> reserve_ttl, double timeout) {
  std::vector<MatchGroup> wanted;
  for (const py::handle member : ToTuple(groups, "groups")) {
    const py::tuple group = ToTupleOf(member, 3, "a match group");
    wanted.push_back({ToNamespace(group[0]), ToKeys(group[1]),
                      static_cast<uint32_t>(ToInteger(group[2], 0, kMaxU32, "window_chunks"))});
  }
  const Duration ttl = SecondsToDuration(reserve_ttl.value_or(0));
  const Deadline deadline = After(timeout);
  return self.Start({},
                    [&](Client& client) { return client.Match(std::move(wanted), ttl, deadline); });
}

// items: [(namespace, key, buffer), ...]
std::unique_ptr<OperationHandle> Fetch(ClientHandle& self, py::handle items, uint64_t reservation,
                                       uint64_t tag, bool accept_inexact, double timeout) {
  HeldBuffers buffers;
  std::vector<FetchItem> wanted;
  for (const py::handle member : ToTuple(items, "items")) {
    const py::tuple item = ToTupleOf(member, 3, "an item");
    FetchItem& fetch = wanted.emplace_back();
    fetch.ns = ToNamespace(item[0]);
    fetch.key = ToDigest(item[1]);
    buffers.Add(item[2], /*writable=*/true, fetch.pieces);
  }
  FetchOptions options;
  options.reservation = reservation;
  options.tag = tag;
  options.accept_inexact = accept_inexact;
  const Deadline deadline = After(timeout);
  return self.Start(std::move(buffers), [&](Client& client) {
    return client.Fetch(std::move(wanted), options, deadline);
  });
}

// items: [(namespace, key, buffer, parent or None, token count), ...]
std::unique_ptr<OperationHandle> Store(ClientHandle& self, py::handle items, bool replace,
                                       uint64_t tag, double timeout) {
  HeldBuffers buffers;
  std::vector<StoreItem> wanted;
  for (const py::handle member : ToTuple(items, "items")) {
    const py::tuple item = ToTupleOf(member, 5, "an item");
    StoreItem& store = wanted.emplace_back();
    store.ns = ToNamespace(item[0]);
    store.key = ToDigest(item[1]);
    buffers.Add(item[2], /*writable=*/false, store.pieces);
    store.parent = ToOptionalDigest(item[3]);
    store.token_count = static_cast<uint32_t>(ToInteger(item[4], 0, kMaxU32, "token_count"));
    store.tag = tag;
  }
  const Deadline deadline = After(timeout);
  return self.Start(std::move(buffers), [&](Client& client) {
    return client.Store(std::move(wanted), replace, deadline);
  });
}

std::unique_ptr<OperationHandle> Touch(ClientHandle& self, py::handle ns, py::handle keys,
                                       double timeout) {
  const Namespace& in = ToNamespace(ns);
  std::vector<ChunkKey> wanted = ToKeys(keys);
  const Deadline deadline = After(timeout);
  return self.Start({},
                    [&](Client& client) { return client.Touch(in, std::move(wanted), deadline); });
}

std::unique_ptr<OperationHandle> Pin(ClientHandle& self, py::handle ns, py::handle keys, double ttl,
                                     double timeout) {
  const Namespace& in = ToNamespace(ns);
  std::vector<ChunkKey> wanted = ToKeys(keys);
  const Duration keep = SecondsToDuration(ttl);
  const Deadline deadline = After(timeout);
  return self.Start(
      {}, [&](Client& client) { return client.Pin(in, std::move(wanted), keep, deadline); });
}

std::unique_ptr<OperationHandle> Drop(ClientHandle& self, py::handle ns, py::handle keys,
                                      double timeout) {
  const Namespace& in = ToNamespace(ns);
  std::vector<ChunkKey> wanted = ToKeys(keys);
  const Deadline deadline = After(timeout);
  return self.Start({},
                    [&](Client& client) { return client.Drop(in, std::move(wanted), deadline); });
}

std::unique_ptr<OperationHandle> Stat(ClientHandle& self, py::handle ns, py::handle key,
                                      double timeout) {
  const Namespace& in = ToNamespace(ns);
  const ChunkKey wanted = ToDigest(key);
  const Deadline deadline = After(timeout);
  return self.Start({}, [&](Client& client) { return client.Stat(in, wanted, deadline); });
}

std::unique_ptr<OperationHandle> Release(ClientHandle& self, uint64_t reservation, double timeout) {
  const Deadline deadline = After(timeout);
  return self.Start({}, [&](Client& client) { return client.Release(reservation, deadline); });
}

std::unique_ptr<OperationHandle> Ping(ClientHandle& self, double timeout) {
  const Deadline deadline = After(timeout);
  return self.Start({}, [&](Client& client) { return client.Ping(deadline); });
}

// --- What Python reads from an operation that is done. ---

py::tuple StatusOf(OperationHandle& self) {
  const Status status = self.Finished().status();
  return py::make_tuple(static_cast<int>(status.code()), status.message());
}

// The code of every item: cheaper than ItemsOf() where nothing else is wanted.
py::list CodesOf(OperationHandle& self) {
  const std::vector<ItemResult>& items = self.Finished().items();
  py::list codes(items.size());
  for (size_t i = 0; i < items.size(); ++i) codes[i] = static_cast<int>(items[i].status.code());
  return codes;
}

// (code, message, bytes, token count) of every item.
py::list ItemsOf(OperationHandle& self) {
  const std::vector<ItemResult>& items = self.Finished().items();
  py::list out(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const ItemResult& item = items[i];
    out[i] = py::make_tuple(static_cast<int>(item.status.code()), item.status.message(), item.bytes,
                            item.token_count);
  }
  return out;
}

// (chunks, bytes, reservation, [(stored bytes, group, index, tier), ...])
py::tuple MatchOf(OperationHandle& self) {
  const MatchOutcome& match = self.Finished().match();
  py::list details(match.details.size());
  for (size_t i = 0; i < match.details.size(); ++i) {
    const MatchReply::Detail& detail = match.details[i];
    details[i] = py::make_tuple(detail.stored_bytes, detail.group, detail.index,
                                static_cast<int>(detail.tier));
  }
  return py::make_tuple(match.chunks, match.bytes, match.reservation, details);
}

// (stored bytes, token count, pins, children, idle milliseconds, tier)
py::tuple StatOf(OperationHandle& self) {
  const StatReply& stat = self.Finished().stat();
  return py::make_tuple(stat.stored_bytes, stat.token_count, stat.pins, stat.children, stat.idle_ms,
                        static_cast<int>(stat.tier));
}

void BindOperation(py::module_& module) {
  py::class_<OperationHandle>(module, "Operation")
      .def("done", &OperationHandle::Done)
      .def("wait", &OperationHandle::Wait, py::arg("timeout"))
      .def("cancel", &OperationHandle::Cancel)
      .def("status", &StatusOf)
      .def("codes", &CodesOf)
      .def("items", &ItemsOf)
      .def("match", &MatchOf)
      .def("stat", &StatOf);
  py::class_<BytesTarget>(module, "BytesTarget")
      .def(py::init<size_t>(), py::arg("capacity"))
      .def("take", &BytesTarget::Take, py::arg("size"));
}

}  // namespace

void BindClient(py::module_& module) {
  BindOperation(module);
  py::class_<ClientHandle, std::shared_ptr<ClientHandle>>(module, "Client")
      .def(py::init(&MakeClient), py::kw_only(), py::arg("address"), py::arg("wire"),
           py::arg("tenant"), py::arg("name"), py::arg("connect_timeout"), py::arg("patience"),
           py::arg("streams"), py::arg("max_in_flight"), py::arg("verify_checksums"))
      .def("close", &ClientHandle::Close)
      .def("wait_connected", &ClientHandle::WaitConnected, py::arg("timeout"))
      .def("stats", &StatsOf)
      .def("open_namespace", &OpenNamespace, py::arg("descriptor"))
      .def("match", &Match, py::arg("groups"), py::arg("reserve_ttl"), py::arg("timeout"))
      .def("fetch", &Fetch, py::arg("items"), py::arg("reservation"), py::arg("tag"),
           py::arg("accept_inexact"), py::arg("timeout"))
      .def("store", &Store, py::arg("items"), py::arg("replace"), py::arg("tag"),
           py::arg("timeout"))
      .def("touch", &Touch, py::arg("ns"), py::arg("keys"), py::arg("timeout"))
      .def("pin", &Pin, py::arg("ns"), py::arg("keys"), py::arg("ttl"), py::arg("timeout"))
      .def("drop", &Drop, py::arg("ns"), py::arg("keys"), py::arg("timeout"))
      .def("stat", &Stat, py::arg("ns"), py::arg("key"), py::arg("timeout"))
      .def("release", &Release, py::arg("reservation"), py::arg("timeout"))
      .def("ping", &Ping, py::arg("timeout"));
}

}  // namespace penstock::python
