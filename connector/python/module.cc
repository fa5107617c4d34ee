// The extension module penstock._core: the client library and the page store in one, so that there
// is one copy of each in the process. What people import is the Python package around it.

#include <pybind11/pybind11.h>

#include "client/python/binding/bind_client.h"
#include "client/python/binding/status_error.h"
#include "connector/python/bind_pages.h"

PYBIND11_MODULE(_core, module) {
  module.attr("__version__") = PENSTOCK_VERSION;
  penstock::python::RegisterStatusError();
  penstock::python::BindKeys(module);
  penstock::python::BindClient(module);
  penstock::python::BindPages(module);
}
