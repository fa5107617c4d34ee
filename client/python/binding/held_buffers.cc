#include "client/python/binding/held_buffers.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "client/python/binding/status_error.h"

namespace penstock::python {

namespace py = pybind11;

namespace {

std::string TypeName(py::handle object) {
  return py::str(py::type::handle_of(object).attr("__name__"));
}

[[noreturn]] void ThrowBadBuffer(py::handle object, std::string_view why) {
  throw StatusError(Code::kBadBuffer, fmt::format("{}: {}", TypeName(object), why));
}

bool LooksLikeTensor(py::handle object) {
  return py::hasattr(object, "untyped_storage") && py::hasattr(object, "data_ptr");
}

}  // namespace

BytesTarget::BytesTarget(size_t capacity)
    : bytes_(py::reinterpret_steal<py::object>(
          PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(capacity)))) {
  if (!bytes_) throw py::error_already_set();
}

iovec BytesTarget::memory() const {
  if (!bytes_) throw StatusError(Code::kBadBuffer, "BytesTarget: its bytes were taken");
  return {PyBytes_AS_STRING(bytes_.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes_.ptr()))};
}

py::bytes BytesTarget::Take(size_t size) {
  if (size > memory().iov_len) throw StatusError(Code::kInternal, "BytesTarget: overrun");
  PyObject* bytes = bytes_.release().ptr();
  if (_PyBytes_Resize(&bytes, static_cast<Py_ssize_t>(size)) != 0) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(bytes);
}

HeldBuffers::HeldBuffers(HeldBuffers&& other) noexcept {
  views_.swap(other.views_);
  kept_.swap(other.kept_);
}

void HeldBuffers::Release() {
  // Taken out first: what is released may run Python code that comes back here.
  std::deque<Py_buffer> views;
  views.swap(views_);
  std::vector<py::object> kept;
  kept.swap(kept_);
  for (Py_buffer& view : views) PyBuffer_Release(&view);
}

void HeldBuffers::Add(py::handle object, bool writable, std::vector<iovec>& pieces) {
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    // Not an iterator: the list may be changed by the code that an exporter runs.
    const auto members = py::reinterpret_steal<py::tuple>(PySequence_Tuple(object.ptr()));
    for (const py::handle member : members) {
      if (PyList_Check(member.ptr()) || PyTuple_Check(member.ptr())) {
        throw py::type_error("a list of buffers must not hold lists");
      }
      Add(member, writable, pieces);
    }
  } else if (PyObject_CheckBuffer(object.ptr()) != 0) {
    AddBuffer(object, writable, pieces);
  } else if (py::isinstance<BytesTarget>(object)) {
    pieces.push_back(object.cast<BytesTarget&>().memory());
    Keep(py::reinterpret_borrow<py::object>(object));
  } else if (LooksLikeTensor(object)) {
    AddTensor(object, pieces);
  } else {
    throw py::type_error(
        fmt::format("a buffer is wanted (bytes, bytearray, memoryview, array, tensor), not {}",
                    TypeName(object)));
  }
}

void HeldBuffers::AddBuffer(py::handle object, bool writable, std::vector<iovec>& pieces) {
  Py_buffer& view = views_.emplace_back();
  if (PyObject_GetBuffer(object.ptr(), &view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
    views_.pop_back();
    py::error_already_set error;
    ThrowBadBuffer(object, std::string(py::str(error.value())));
  }
  pieces.push_back({view.buf, static_cast<size_t>(view.len)});
}

void HeldBuffers::AddTensor(py::handle tensor, std::vector<iovec>& pieces) {
  try {
    const std::string device = py::str(tensor.attr("device").attr("type"));
    if (device != "cpu") {
      ThrowBadBuffer(tensor, fmt::format("its memory is on {}, only the CPU's is read", device));
    }
    if (!tensor.attr("is_contiguous")().cast<bool>()) {
      ThrowBadBuffer(tensor, "not contiguous (call contiguous() first)");
    }
    const auto elements = tensor.attr("numel")().cast<size_t>();
    const auto element_bytes = tensor.attr("element_size")().cast<size_t>();
    const auto address = tensor.attr("data_ptr")().cast<uintptr_t>();
    // The storage, not the tensor: a tensor can be given another storage.
    Keep(tensor.attr("untyped_storage")());
    pieces.push_back({reinterpret_cast<void*>(address),  // NOLINT(performance-no-int-to-ptr)
                      elements * element_bytes});
  } catch (const py::error_already_set& error) {
    ThrowBadBuffer(tensor, std::string(py::str(error.value())));
  }
}

}  // namespace penstock::python
