#include "client/python/binding/status_error.h"

namespace penstock::python {

namespace py = pybind11;

void RegisterStatusError() {
  // NOLINTNEXTLINE(performance-unnecessary-value-param): pybind11 has it so.
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const StatusError& error) {
      const py::object make_error = py::module_::import("penstock._status").attr("make_error");
      const py::object exception =
          make_error(static_cast<int>(error.status().code()), error.status().message());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
}

}  // namespace penstock::python
