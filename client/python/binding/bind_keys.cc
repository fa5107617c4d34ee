#include <fmt/format.h>
#include <pybind11/pybind11.h>

#include <limits>
#include <string>
#include <vector>

#include "client/python/binding/bind_client.h"
#include "client/python/binding/convert.h"
#include "client/python/binding/held_buffers.h"
#include "client/python/binding/status_error.h"
#include "common/keys/chunk_key.h"

namespace penstock::python {

namespace py = pybind11;

namespace {

// (name, number, advice) of every code, in order.
py::list Codes() {
  py::list codes;
  for (uint16_t number = 0; number < kCodeCount; ++number) {
    const auto code = static_cast<Code>(number);
    codes.append(py::make_tuple(py::str(std::string(CodeName(code))), number,
                                py::str(std::string(CodeAdvice(code)))));
  }
  return codes;
}

ByteSpan OneBuffer(py::handle object, HeldBuffers& held) {
  std::vector<iovec> pieces;
  held.Add(object, /*writable=*/false, pieces);
  if (pieces.size() != 1) throw py::type_error("one buffer is wanted");
  return {static_cast<const std::byte*>(pieces[0].iov_base), pieces[0].iov_len};
}

py::bytes PrefixKeyOf(py::handle ns, py::handle parent, py::handle identity) {
  HeldBuffers held;
  const ByteSpan bytes = OneBuffer(identity, held);
  return FromDigest(PrefixKey(ToDigest(ns), ToOptionalDigest(parent), bytes));
}

// The keys of consecutive chunks, each the parent of the next.
py::list PrefixKeysOf(py::handle ns, py::handle parent, py::handle identities) {
  const Fingerprint fingerprint = ToDigest(ns);
  std::optional<ChunkKey> last = ToOptionalDigest(parent);
  py::list keys;
  for (const py::handle identity : ToTuple(identities, "identities")) {
    HeldBuffers held;
    last = PrefixKey(fingerprint, last, OneBuffer(identity, held));
    keys.append(FromDigest(*last));
  }
  return keys;
}

py::bytes PrefixTokensKeyOf(py::handle ns, py::handle parent, py::handle tokens) {
  std::vector<uint32_t> ids;
  for (const py::handle token : ToTuple(tokens, "tokens")) {
    ids.push_back(static_cast<uint32_t>(
        ToInteger(token, 0, std::numeric_limits<uint32_t>::max(), "token id")));
  }
  return FromDigest(PrefixTokensKey(ToDigest(ns), ToOptionalDigest(parent), ids));
}

std::string NamespaceText(const NamespaceHandle& handle) {
  return fmt::format("<penstock.Namespace {} {}>", handle.ns.fingerprint().ToShortHex(),
                     handle.ns.descriptor().model);
}

}  // namespace

void BindKeys(py::module_& module) {
  module.def("codes", &Codes);
  module.def("prefix_key", &PrefixKeyOf, py::arg("ns"), py::arg("parent"), py::arg("identity"));
  module.def("prefix_keys", &PrefixKeysOf, py::arg("ns"), py::arg("parent"), py::arg("identities"));
  module.def("prefix_tokens_key", &PrefixTokensKeyOf, py::arg("ns"), py::arg("parent"),
             py::arg("tokens"));
  module.def(
      "named_key",
      [](py::handle ns, const std::string& name) {
        return FromDigest(NamedKey(ToDigest(ns), name));
      },
      py::arg("ns"), py::arg("name"));
  module.def("fingerprint", [](py::handle descriptor) {
    const NamespaceDescriptor value = ToDescriptor(descriptor);
    ThrowIfError(value.Validate());
    return FromDigest(value.ComputeFingerprint());
  });
  module.def("encode_descriptor", [](py::handle descriptor) {
    const NamespaceDescriptor value = ToDescriptor(descriptor);
    ThrowIfError(value.Validate());
    const std::vector<std::byte> bytes = value.Encode();
    return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });

  py::class_<NamespaceHandle>(module, "Namespace",
                              "A namespace that chunks live in. Made by Client.namespace().")
      .def_property_readonly(
          "fingerprint", [](const NamespaceHandle& self) { return self.ns.fingerprint().ToHex(); })
      .def_property_readonly(
          "fingerprint_bytes",
          [](const NamespaceHandle& self) { return FromDigest(self.ns.fingerprint()); })
      .def_readonly("descriptor", &NamespaceHandle::descriptor)
      .def("__eq__",
           [](const NamespaceHandle& self, py::handle other) {
             return py::isinstance<NamespaceHandle>(other) &&
                    other.cast<const NamespaceHandle&>().ns.fingerprint() == self.ns.fingerprint();
           })
      .def("__hash__",
           [](const NamespaceHandle& self) { return self.ns.fingerprint().Word() >> 1; })
      .def("__repr__", &NamespaceText);
}

}  // namespace penstock::python
