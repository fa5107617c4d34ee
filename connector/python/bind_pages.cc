#include "connector/python/bind_pages.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/python/binding/client_handle.h"
#include "client/python/binding/convert.h"
#include "client/python/binding/held_buffers.h"
#include "client/python/binding/operation_handle.h"
#include "client/python/binding/status_error.h"
#include "connector/core/page_store.h"

namespace penstock::python {

namespace py = pybind11;

namespace {

constexpr int64_t kMaxI64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMaxU16 = std::numeric_limits<uint16_t>::max();

// A PageStore as Python holds it. It keeps its client, and what the storages belong to; operations
// keep it.
class PagesHandle final : public ClientUser, public std::enable_shared_from_this<PagesHandle> {
 public:
  static std::shared_ptr<PagesHandle> Make(std::shared_ptr<ClientHandle> client,
                                           std::optional<BlockId> null_block) {
    auto handle = std::make_shared<PagesHandle>();
    handle->pages_ = std::make_unique<PageStore>(client->Share(handle),
                                                 PageStoreOptions{.null_block = null_block});
    handle->client_ = std::move(client);
    return handle;
  }

  ~PagesHandle() override {
    // Without the GIL, as closing waits. In a forked child nothing may wait.
    if (client_ != nullptr && client_->InForkedChild()) {
      (void)pages_.release();
    } else if (pages_ != nullptr) {
      WithoutGil([this] { pages_.reset(); });
    }
  }

  void EndUse() override { pages_->Close(); }

  void Close() {
    if (client_->InForkedChild()) return;
    WithoutGil([this] { pages_->Close(); });
  }

  uint32_t RegisterMemory(uintptr_t address, uint64_t bytes, py::object owner) {
    void* const data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    const uint32_t storage =
        With([&](PageStore& pages) { return pages.RegisterStorage(data, bytes); });
    if (!owner.is_none()) owners_.Keep(std::move(owner));
    return storage;
  }

  uint32_t RegisterBuffer(py::handle buffer) {
    std::vector<iovec> pieces;
    HeldBuffers held;
    held.Add(buffer, /*writable=*/true, pieces);
    if (pieces.size() != 1) throw py::type_error("one buffer is wanted");
    const uint32_t storage = With([&](PageStore& pages) {
      return pages.RegisterStorage(pieces[0].iov_base, pieces[0].iov_len);
    });
    owners_.Add(buffer, /*writable=*/true, pieces);
    return storage;
  }

  uint32_t AddGroup(const NamespaceHandle& ns, uint32_t blocks_per_chunk, py::handle views) {
    std::vector<PageView> list;
    for (const py::handle member : ToTuple(views, "views")) {
      const py::tuple view = ToTupleOf(member, 5, "a page view");
      list.push_back({
          .storage = static_cast<uint32_t>(ToInteger(view[0], 0, kMaxU32, "storage")),
          .offset = static_cast<uint64_t>(ToInteger(view[1], 0, kMaxI64, "offset")),
          .block_stride = static_cast<uint64_t>(ToInteger(view[2], 0, kMaxI64, "block_stride")),
          .page_bytes = static_cast<uint64_t>(ToInteger(view[3], 0, kMaxI64, "page_bytes")),
          .layer = static_cast<uint16_t>(ToInteger(view[4], 0, kMaxU16, "layer_index")),
      });
    }
    return With([&](PageStore& pages) { return pages.AddGroup(ns.ns, blocks_per_chunk, list); });
  }

  void RemoveGroup(uint32_t group) {
    With([&](PageStore& pages) -> Result<uint32_t> {
      PENSTOCK_RETURN_IF_ERROR(pages.RemoveGroup(group));
      return group;
    });
  }

  std::unique_ptr<OperationHandle> Load(py::handle chunks, uint64_t reservation, double timeout) {
    return Start(chunks, timeout, [&](auto& list, const Deadline& deadline) {
      return pages_->Load(list, reservation, deadline);
    });
  }

  std::unique_ptr<OperationHandle> Store(py::handle chunks, double timeout) {
    return Start(chunks, timeout, [&](auto& list, const Deadline& deadline) {
      return pages_->Store(list, deadline);
    });
  }

  // (chunk bytes, block bytes, block limit, tag)
  py::tuple LayoutOf(uint32_t group) const {
    const std::optional<PageLayout> layout = pages_->layout(group);
    if (!layout)
      throw StatusError(Code::kInvalidArgument, fmt::format("there is no group {}", group));
    return py::make_tuple(layout->chunk_bytes(), layout->block_bytes(), layout->block_limit(),
                          layout->tag());
  }

  // (storages that could not be registered, why)
  py::tuple UnregisteredStorages() const {
    return py::make_tuple(pages_->unregistered_storages(),
                          pages_->last_registration_error().ToString());
  }

 private:
  template <typename Call>
  uint32_t With(Call&& call) {
    client_->ThrowInForkedChild();
    Result<uint32_t> result = WithoutGil([&] { return call(*pages_); });
    return ValueOrThrow(std::move(result));
  }

  template <typename Call>
  std::unique_ptr<OperationHandle> Start(py::handle chunks, double timeout, Call&& call) {
    client_->ThrowInForkedChild();
    const std::vector<PageChunk> list = ToChunks(chunks);
    const Deadline deadline = Deadline::After(SecondsToDuration(timeout));
    OperationPtr operation = WithoutGil([&] { return call(list, deadline); });
    return std::make_unique<OperationHandle>(std::move(operation), HeldBuffers(),
                                             shared_from_this());
  }

  // chunks: [(group, key, blocks, parent or None, token count), ...]
  static std::vector<PageChunk> ToChunks(py::handle chunks) {
    const py::tuple members = ToTuple(chunks, "chunks");
    std::vector<PageChunk> list;
    list.reserve(members.size());
    for (const py::handle member : members) {
      const py::tuple item = ToTupleOf(member, 5, "a page chunk");
      PageChunk& chunk = list.emplace_back();
      chunk.group = static_cast<uint32_t>(ToInteger(item[0], 0, kMaxU32, "group"));
      chunk.key = ToDigest(item[1]);
      const py::tuple blocks = ToTuple(item[2], "blocks");
      chunk.blocks.reserve(blocks.size());
      for (const py::handle block : blocks) {
        chunk.blocks.push_back(
            ToInteger(block, std::numeric_limits<int64_t>::min(), kMaxI64, "block id"));
      }
      chunk.parent = ToOptionalDigest(item[3]);
      chunk.token_count = static_cast<uint32_t>(ToInteger(item[4], 0, kMaxU32, "token_count"));
    }
    return list;
  }

  std::shared_ptr<ClientHandle> client_;
  HeldBuffers owners_;
  std::unique_ptr<PageStore> pages_;  // Last, so that it goes before what the storages belong to.
};

}  // namespace

void BindPages(py::module_& module) {
  module.attr("SKIPPED_BLOCK") = kSkippedBlock;
  py::class_<PagesHandle, std::shared_ptr<PagesHandle>>(module, "PageStore")
      .def(py::init(&PagesHandle::Make), py::arg("client"), py::kw_only(), py::arg("null_block"))
      .def("close", &PagesHandle::Close)
      .def("register_memory", &PagesHandle::RegisterMemory, py::arg("address"), py::arg("nbytes"),
           py::arg("owner"))
      .def("register_buffer", &PagesHandle::RegisterBuffer, py::arg("buffer"))
      .def("add_group", &PagesHandle::AddGroup, py::arg("ns"), py::arg("blocks_per_chunk"),
           py::arg("views"))
      .def("remove_group", &PagesHandle::RemoveGroup, py::arg("group"))
      .def("load", &PagesHandle::Load, py::arg("chunks"), py::arg("reservation"),
           py::arg("timeout"))
      .def("store", &PagesHandle::Store, py::arg("chunks"), py::arg("timeout"))
      .def("layout", &PagesHandle::LayoutOf, py::arg("group"))
      .def("unregistered_storages", &PagesHandle::UnregisteredStorages);
}

}  // namespace penstock::python
