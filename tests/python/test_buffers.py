"""Memory that cannot be used is refused by name, before anything is sent; the rest is not copied."""

import array
import ctypes
import mmap
import sys

import penstock
import pytest
from penstock import Code

np = pytest.importorskip("numpy")


@pytest.fixture
def key(client, ns):
    key = penstock.named_key(ns, "x")
    client.put(ns, key, bytes(range(64)))
    return key


@pytest.mark.parametrize(
    "target",
    [
        bytes(64),
        memoryview(bytes(64)),
        memoryview(bytearray(64)).toreadonly(),
        np.frombuffer(bytes(64), np.uint8),
    ],
    ids=lambda target: type(target).__name__,
)
def test_read_only_memory_is_never_written(client, ns, key, target):
    before = bytes(target)
    with pytest.raises(penstock.BadBuffer):
        client.get(ns, key, target)
    assert bytes(target) == before


def test_memory_with_gaps_is_refused_in_both_directions(client, ns, key):
    with_gaps = np.zeros(128, np.uint8)[::2]
    columns = np.zeros((8, 8), np.uint8)[:, :4]
    for array_ in (with_gaps, columns):
        with pytest.raises(penstock.BadBuffer, match="contiguous"):
            client.get(ns, key, array_)
        with pytest.raises(penstock.BadBuffer, match="contiguous"):
            client.put(ns, penstock.named_key(ns, "y"), array_)
    with pytest.raises(penstock.Miss):
        client.get(ns, penstock.named_key(ns, "y"))


def test_memory_that_was_let_go_is_refused(client, ns, key):
    view = memoryview(bytearray(64))
    view.release()
    closed = mmap.mmap(-1, 4096)
    closed.close()
    for gone in (view, closed):
        with pytest.raises(penstock.BadBuffer):
            client.get(ns, key, gone)
        with pytest.raises(penstock.BadBuffer):
            client.put(ns, penstock.named_key(ns, "y"), gone)


def test_a_mapping_without_write_permission_is_refused(client, ns, key):
    libc = ctypes.CDLL(None, use_errno=True)
    region = mmap.mmap(-1, 8192)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    assert libc.mprotect(ctypes.c_void_p(address), 8192, mmap.PROT_READ) == 0
    with pytest.raises(penstock.BadBuffer):
        client.get(ns, key, region)
    assert libc.mprotect(ctypes.c_void_p(address), 8192, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    assert client.get(ns, key, region) == 64


@pytest.mark.parametrize("room", [65, 64, 63, 1, 0])
def test_no_byte_is_written_outside_of_the_buffer(client, ns, key, room):
    guarded = bytearray(b"\xa5" * (32 + room + 32))
    target = memoryview(guarded)[32 : 32 + room]
    if room >= 64:
        assert client.get(ns, key, target) == 64
        assert bytes(target[:64]) == bytes(range(64))
    else:
        with pytest.raises(penstock.PenstockError) as caught:
            client.get(ns, key, target)
        assert caught.value.code == Code.BUFFER_TOO_SMALL
    assert guarded[:32] == b"\xa5" * 32 and guarded[32 + room :] == b"\xa5" * 32


@pytest.mark.parametrize("shift", [0, 1, 2, 3, 7])
def test_memory_need_not_be_aligned(client, ns, shift):
    key = penstock.named_key(ns, str(shift))
    data = memoryview(bytes(range(200)))[shift : shift + 100]
    client.put(ns, key, data)
    target = bytearray(200)
    assert client.get(ns, key, memoryview(target)[shift + 1 :]) == 100
    assert target[shift + 1 : shift + 101] == data


def test_many_kinds_of_buffer_go_both_ways(client, ns):
    for i, make in enumerate(
        [
            lambda: bytearray(96),
            lambda: memoryview(bytearray(96)),
            lambda: array.array("d", [0.0] * 12),
            lambda: (ctypes.c_char * 96)(),
            lambda: np.zeros((3, 4), np.float64),
            lambda: np.zeros((3, 4), np.float64)[:, :, None],
            lambda: mmap.mmap(-1, 96),
        ]
    ):
        key = penstock.named_key(ns, str(i))
        source, target = make(), make()
        memoryview(source).cast("B")[:] = bytes(range(96))
        client.put(ns, key, source)
        assert client.get(ns, key, target) == 96
        assert bytes(memoryview(target).cast("B")) == bytes(range(96))


def test_a_buffer_cannot_be_resized_while_an_operation_has_it(daemon):
    with penstock.Client(daemon.unix) as client:
        client.wait_connected(10)
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        source = bytearray(1 << 20)
        daemon.freeze()
        op = client.put_async(ns, penstock.named_key(ns, "x"), source, timeout=30)
        with pytest.raises(BufferError):
            source.clear()
        op.cancel()
        source.clear()
        with pytest.raises(penstock.PenstockError) as caught:
            op.result()
        assert caught.value.code == Code.CANCELLED


def test_the_buffer_of_a_dropped_operation_is_let_go(daemon):
    with penstock.Client(daemon.unix) as client:
        client.wait_connected(10)
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        source = bytearray(1 << 20)
        before = sys.getrefcount(source)
        daemon.freeze()
        op = client.put_async(ns, penstock.named_key(ns, "x"), source, timeout=30)
        assert sys.getrefcount(source) > before
        del op
        assert sys.getrefcount(source) == before
        source.clear()
        assert client.stats()["in_flight"] == 0


def test_tensors_go_both_ways_without_a_copy(client, ns):
    torch = pytest.importorskip("torch")
    for i, dtype in enumerate((torch.bfloat16, torch.float16, torch.float32, torch.int8)):
        key = penstock.named_key(ns, str(i))
        source = (torch.arange(240) % 100).to(dtype).reshape(2, 3, 40)
        client.put(ns, key, source)
        target = torch.zeros_like(source)
        assert client.get(ns, key, target) == source.numel() * source.element_size()
        assert torch.equal(source, target)
        part = torch.zeros(4, 240, dtype=dtype)
        assert client.get(ns, key, part[2]) == 240 * source.element_size()
        assert torch.equal(part[2], source.flatten())
        assert not part[[0, 1, 3]].any()


def test_tensors_with_gaps_or_elsewhere_are_refused(client, ns, key):
    torch = pytest.importorskip("torch")
    with pytest.raises(penstock.BadBuffer, match="contiguous"):
        client.get(ns, key, torch.zeros(8, 16, dtype=torch.uint8).t())
    with pytest.raises(penstock.BadBuffer, match="meta"):
        client.get(ns, key, torch.zeros(64, dtype=torch.uint8, device="meta"))
    with pytest.raises(penstock.BadBuffer):
        client.put(ns, penstock.named_key(ns, "y"), torch.zeros(4, 4).to_sparse())


def test_torch_is_not_imported_for_anything_else():
    import subprocess

    code = "import sys, penstock; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
