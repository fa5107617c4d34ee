#include "client/python/binding/convert.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <string>

#include "client/python/binding/status_error.h"

namespace penstock::python {

namespace py = pybind11;

Digest256 ToDigest(py::handle object) {
  if (!PyBytes_Check(object.ptr())) {
    throw py::type_error(
        fmt::format("a key is bytes, not {}", std::string(py::str(py::type::handle_of(object)))));
  }
  Digest256 digest;
  const auto size = static_cast<size_t>(PyBytes_GET_SIZE(object.ptr()));
  if (size != digest.bytes.size()) {
    throw StatusError(Code::kInvalidArgument, fmt::format("a key has 32 bytes, not {}", size));
  }
  std::memcpy(digest.bytes.data(), PyBytes_AS_STRING(object.ptr()), size);
  return digest;
}

std::optional<Digest256> ToOptionalDigest(py::handle object) {
  if (object.is_none()) return std::nullopt;
  return ToDigest(object);
}

py::bytes FromDigest(const Digest256& digest) {
  return py::bytes(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

std::vector<ChunkKey> ToKeys(py::handle object) {
  const py::tuple members = ToTuple(object, "keys");
  std::vector<ChunkKey> keys;
  keys.reserve(members.size());
  for (const py::handle member : members) keys.push_back(ToDigest(member));
  return keys;
}

py::tuple ToTuple(py::handle object, const char* what) {
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) {
    throw py::type_error(fmt::format("{}: a list or tuple is wanted", what));
  }
  auto members = py::reinterpret_steal<py::tuple>(PySequence_Tuple(object.ptr()));
  if (!members) throw py::error_already_set();
  return members;
}

py::tuple ToTupleOf(py::handle object, size_t size, const char* what) {
  if (!PyTuple_Check(object.ptr()) || PyTuple_GET_SIZE(object.ptr()) != Py_ssize_t(size)) {
    throw py::type_error(fmt::format("{}: a tuple of {} is wanted", what, size));
  }
  return py::reinterpret_borrow<py::tuple>(object);
}

int64_t ToInteger(py::handle object, int64_t low, int64_t high, const char* what) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || value < low || value > high) {
    throw StatusError(Code::kInvalidArgument, fmt::format("{} is {}, not in {}..{}", what,
                                                          std::string(py::str(number)), low, high));
  }
  return value;
}

namespace {

uint32_t U32Attribute(py::handle object, const char* name) {
  return static_cast<uint32_t>(
      ToInteger(object.attr(name), 0, std::numeric_limits<uint32_t>::max(), name));
}

uint64_t U64Attribute(py::handle object, const char* name) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(object.attr(name).ptr()));
  if (!number) throw py::error_already_set();
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw StatusError(Code::kInvalidArgument, fmt::format("{} is {}, not in 0..2**64-1", name,
                                                          std::string(py::str(number))));
  }
  return value;
}

std::string ToText(py::handle value, const char* name) {
  if (!PyUnicode_Check(value.ptr())) {
    throw py::type_error(fmt::format("{}: str is wanted, not {}", name,
                                     std::string(py::str(py::type::handle_of(value)))));
  }
  return value.cast<std::string>();
}

std::string TextAttribute(py::handle object, const char* name) {
  return ToText(object.attr(name), name);
}

}  // namespace

NamespaceDescriptor ToDescriptor(py::handle object) {
  NamespaceDescriptor descriptor;
  descriptor.tenant = TextAttribute(object, "tenant");
  descriptor.tenant_salt = TextAttribute(object, "tenant_salt");
  descriptor.model = TextAttribute(object, "model");
  descriptor.model_revision = TextAttribute(object, "model_revision");
  descriptor.kv_dtype = TextAttribute(object, "kv_dtype");
  descriptor.kv_scale_mode = TextAttribute(object, "kv_scale_mode");
  descriptor.layout = TextAttribute(object, "layout");
  descriptor.block_tokens = U32Attribute(object, "block_tokens");
  descriptor.chunk_tokens = U32Attribute(object, "chunk_tokens");
  descriptor.tp_rank = U32Attribute(object, "tp_rank");
  descriptor.tp_size = U32Attribute(object, "tp_size");
  descriptor.pp_rank = U32Attribute(object, "pp_rank");
  descriptor.pp_size = U32Attribute(object, "pp_size");
  descriptor.dcp_rank = U32Attribute(object, "dcp_rank");
  descriptor.dcp_size = U32Attribute(object, "dcp_size");
  descriptor.group = U32Attribute(object, "group");
  descriptor.group_kind = TextAttribute(object, "group_kind");
  descriptor.adapter = TextAttribute(object, "adapter");
  descriptor.adapter_generation = U64Attribute(object, "adapter_generation");
  for (const auto& [name, value] : py::dict(object.attr("extension"))) {
    descriptor.extension.emplace(ToText(name, "extension"), ToText(value, "extension"));
  }
  return descriptor;
}

}  // namespace penstock::python
