// Values between Python and the client library. Everything here needs the GIL and throws TypeError,
// ValueError or StatusError, saying what is wrong with the value.

#ifndef PENSTOCK_CLIENT_PYTHON_BINDING_CONVERT_H_
#define PENSTOCK_CLIENT_PYTHON_BINDING_CONVERT_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "client/lib/client.h"

namespace penstock::python {

// A Namespace as Python holds it: with the penstock.NamespaceDescriptor it was made from.
struct NamespaceHandle {
  Namespace ns;
  pybind11::object descriptor;
};

// 32 bytes.
Digest256 ToDigest(pybind11::handle object);
std::optional<Digest256> ToOptionalDigest(pybind11::handle object);  // None: nothing.
pybind11::bytes FromDigest(const Digest256& digest);
// A list or tuple of keys.
std::vector<ChunkKey> ToKeys(pybind11::handle object);

// A penstock.NamespaceDescriptor: any object with its attributes.
NamespaceDescriptor ToDescriptor(pybind11::handle object);

// The members of a list or tuple, held, so that other threads may change the list meanwhile.
// `what` names it in the TypeError that anything else gets.
pybind11::tuple ToTuple(pybind11::handle object, const char* what);
// One member: a tuple of `size` things.
pybind11::tuple ToTupleOf(pybind11::handle object, size_t size, const char* what);
// An int, or anything that counts as one (NumPy's too), within [low, high].
int64_t ToInteger(pybind11::handle object, int64_t low, int64_t high, const char* what);

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_BINDING_CONVERT_H_
