// The page store's part of the extension module penstock._core.

#ifndef PENSTOCK_CONNECTOR_PYTHON_BIND_PAGES_H_
#define PENSTOCK_CONNECTOR_PYTHON_BIND_PAGES_H_

#include <pybind11/pybind11.h>

namespace penstock::python {

void BindPages(pybind11::module_& module);

}  // namespace penstock::python

#endif  // PENSTOCK_CONNECTOR_PYTHON_BIND_PAGES_H_
