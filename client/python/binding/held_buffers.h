// HeldBuffers: memory of Python objects that an operation uses, and what keeps it in place.
//
// Three kinds of object have memory to give, none of it copied:
//   * whatever exports a contiguous buffer (bytes, bytearray, memoryview, NumPy arrays, ...): the
//     export is held, so the object can neither move nor shrink its memory meanwhile;
//   * PyTorch tensors on the CPU, contiguous: their storage is held. They are known by their
//     methods, so that PyTorch need not be installed, let alone imported;
//   * BytesTarget: a bytes object in the making.
//
// Everything here needs the GIL.

#ifndef PENSTOCK_CLIENT_PYTHON_BINDING_HELD_BUFFERS_H_
#define PENSTOCK_CLIENT_PYTHON_BINDING_HELD_BUFFERS_H_

#include <pybind11/pybind11.h>
#include <sys/uio.h>

#include <deque>
#include <vector>

namespace penstock::python {

// A bytes object that a fetch fills before anybody else sees it. Not thread-safe.
class BytesTarget {
 public:
  explicit BytesTarget(size_t capacity);

  iovec memory() const;
  // The first `size` bytes, as the bytes object itself. Only once, and only when no operation uses
  // the memory any more.
  pybind11::bytes Take(size_t size);

 private:
  pybind11::object bytes_;
};

class HeldBuffers {
 public:
  HeldBuffers() = default;
  ~HeldBuffers() { Release(); }
  HeldBuffers(HeldBuffers&& other) noexcept;
  HeldBuffers& operator=(HeldBuffers&&) = delete;

  // Adds the memory of `object`, or of each member of a list or tuple, in order, to `pieces`.
  // Throws StatusError(kBadBuffer), saying why, or TypeError.
  void Add(pybind11::handle object, bool writable, std::vector<iovec>& pieces);
  // Keeps `object` until Release().
  void Keep(pybind11::object object) { kept_.push_back(std::move(object)); }
  // Lets go of everything. Idempotent.
  void Release();

 private:
  void AddBuffer(pybind11::handle object, bool writable, std::vector<iovec>& pieces);
  void AddTensor(pybind11::handle tensor, std::vector<iovec>& pieces);

  // Never moved once filled: exporters may point into them.
  std::deque<Py_buffer> views_;
  std::vector<pybind11::object> kept_;
};

}  // namespace penstock::python

#endif  // PENSTOCK_CLIENT_PYTHON_BINDING_HELD_BUFFERS_H_
