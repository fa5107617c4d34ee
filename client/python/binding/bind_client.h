// The client library's part of the extension module penstock._core.

#ifndef PENSTOCK_CLIENT_PYTHON_BINDING_BIND_CLIENT_H_
#define PENSTOCK_CLIENT_PYTHON_BINDING_BIND_CLIENT_H_

#include <pybind11/pybind11.h>

namespace penstock::python {

// Adds the codes, keys and namespaces.
void BindKeys(pybind11::module_& module);
// Adds Client, Operation and BytesTarget.
void BindClient(pybind11::module_& module);

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_BINDING_BIND_CLIENT_H_
