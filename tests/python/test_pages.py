"""The page store against a real daemon: chunks in and out of an engine's pages."""

import random

import penstock
import pytest
from penstock import Code, PageChunk, PageView

np = pytest.importorskip("numpy")


def chain_of(ns, count, salt=b"") -> list[bytes]:
    return penstock.prefix_keys(ns, [salt + bytes([i]) for i in range(count)])


class Model:
    """Pages as an engine has them: layers in one array, or interleaved by block."""

    def __init__(
        self, client, ns, *, layers=3, blocks=16, page=512, per_chunk=2, interleaved=False
    ):
        self.memory = np.zeros(layers * blocks * page, np.uint8)
        if interleaved:
            self.pages_of = self.memory.reshape(blocks, layers, page).transpose(1, 0, 2)
            stride, step = layers * page, page
        else:
            self.pages_of = self.memory.reshape(layers, blocks, page)
            stride, step = page, blocks * page
        self.pages = penstock.PageStore(client, null_block=0)
        self.storage = self.pages.register_buffer(self.memory)
        self.group = self.pages.add_group(
            ns,
            per_chunk,
            [PageView(self.storage, layer * step, stride, page, layer) for layer in range(layers)],
        )

    def fill(self, seed=0):
        self.memory[:] = np.random.default_rng(seed).integers(0, 256, self.memory.size, np.uint8)

    def chunk(self, key, blocks, **more):
        return PageChunk(self.group, key, blocks, **more)


@pytest.mark.parametrize("write_interleaved", [False, True])
@pytest.mark.parametrize("read_interleaved", [False, True])
def test_chunks_come_back_into_other_blocks_of_another_engine(
    client, ns, write_interleaved, read_interleaved
):
    writer = Model(client, ns, interleaved=write_interleaved)
    reader = Model(client, ns, interleaved=read_interleaved, blocks=40)
    writer.fill()
    keys = chain_of(ns, 3)
    places = [[3, 4], [9, 2], [15, 1]]
    stored = writer.pages.store(
        [
            writer.chunk(key, blocks, parent=keys[i - 1] if i else None, token_count=256)
            for i, (key, blocks) in enumerate(zip(keys, places))
        ]
    )
    assert stored.result() == [Code.OK] * 3
    assert client.stat(ns, keys[1]).token_count == 256

    match = client.match([penstock.MatchGroup(ns, keys)], reserve_ttl=10).result()
    assert (match.chunks, match.bytes) == (3, 3 * 2 * 3 * 512)
    reader.memory[:] = 0xA5
    targets = [[30, 31], [39, 5], [7, 1]]
    loaded = reader.pages.load(
        [reader.chunk(key, blocks) for key, blocks in zip(keys, targets)], match.reservation
    )
    assert loaded.result() == [Code.OK] * 3
    touched = []
    for place, target in zip(places, targets):
        for source_block, target_block in zip(place, target):
            touched.append(target_block)
            assert (reader.pages_of[:, target_block] == writer.pages_of[:, source_block]).all()
    others = [block for block in range(40) if block not in touched]
    assert (reader.pages_of[:, others] == 0xA5).all()


def test_every_chunk_gets_its_own_code_in_order(client, ns):
    model = Model(client, ns)
    model.fill()
    a, b, c, d = chain_of(ns, 4)
    assert model.pages.store([model.chunk(a, [1, 2])]).result() == [Code.OK]
    codes = model.pages.store(
        [
            model.chunk(b, [3, 4]),
            model.chunk(a, [5, 6]),
            model.chunk(c, [7, 16]),  # One past the end.
            model.chunk(c, [0, 7]),  # The null block.
            model.chunk(c, [7]),
            model.chunk(c, [7, -1]),
            model.chunk(c, [7, -5]),
            PageChunk(model.group + 1, c, [1, 2]),
            model.chunk(d, [8, 8]),
        ]
    ).result()
    bad = Code.INVALID_ARGUMENT
    assert codes == [Code.OK, Code.ALREADY_EXISTS, bad, bad, bad, bad, bad, bad, Code.OK]
    before = model.memory.copy()
    codes = model.pages.load(
        [
            model.chunk(c, [1, 2]),
            model.chunk(a, [10, 99]),
            model.chunk(b, [11, 12]),
            model.chunk(a, [13, 13]),  # Both pages in one place.
            model.chunk(a, [12, 14]),  # Block 12 is written by the third.
            model.chunk(a, [0, 14]),
            model.chunk(a, [-1, -1]),
        ]
    ).result()
    assert codes == [Code.MISS, bad, Code.OK, bad, bad, bad, bad]
    changed = (before.reshape(3, 16, 512) != model.memory.reshape(3, 16, 512)).any(axis=(0, 2))
    assert set(np.flatnonzero(changed)) <= {1, 2, 11, 12}
    assert model.pages.load([]).result() == [] and model.pages.store([]).result() == []


def test_skipped_blocks_are_left_alone(client, ns):
    model = Model(client, ns, per_chunk=4)
    model.fill()
    (key,) = chain_of(ns, 1)
    model.pages.store([model.chunk(key, [1, 2, 3, 4])]).result()
    source = model.pages_of[:, 1:5].copy()
    model.memory[:] = 0
    skip = penstock.SKIPPED_BLOCK
    assert model.pages.load([model.chunk(key, [skip, 9, skip, 10])]).result() == [Code.OK]
    assert (model.pages_of[:, 9] == source[:, 1]).all()
    assert (model.pages_of[:, 10] == source[:, 3]).all()
    model.pages_of[:, [9, 10]] = 0
    assert not model.memory.any()


def test_another_layout_is_a_mismatch_not_a_jumble(client, ns):
    writer = Model(client, ns, layers=4, page=512, per_chunk=2)
    writer.fill()
    (key,) = chain_of(ns, 1)
    writer.pages.store([writer.chunk(key, [1, 2])]).result()
    for other in (
        {"layers": 2, "page": 1024, "per_chunk": 2},
        {"layers": 4, "page": 256, "per_chunk": 4},
        {"layers": 1, "page": 2048, "per_chunk": 2},
        {"layers": 4, "page": 512, "per_chunk": 1},
        {"layers": 8, "page": 512, "per_chunk": 2},
    ):
        reader = Model(client, ns, **other)
        blocks = list(range(1, other["per_chunk"] + 1))
        assert reader.pages.load([reader.chunk(key, blocks)]).result() == [Code.FORMAT_MISMATCH]
    swapped = Model(client, ns, layers=4)
    group = swapped.pages.add_group(
        ns, 2, [PageView(0, layer * 16 * 512, 512, 512, layer) for layer in (1, 0, 2, 3)]
    )
    assert swapped.pages.load([PageChunk(group, key, [1, 2])]).result() == [Code.FORMAT_MISMATCH]


def test_groups_that_share_a_storage_load_in_one_go(client):
    """As a hybrid model has it: every group sees the same pages, no block is in two groups."""
    groups, page, blocks = 6, 256, 64
    memory = np.zeros((3, blocks, page), np.uint8)
    pages = penstock.PageStore(client, null_block=0)
    storage = pages.register_buffer(memory)
    spaces = [
        client.namespace(penstock.NamespaceDescriptor(model="hybrid", group=g))
        for g in range(groups)
    ]
    numbers = [
        pages.add_group(
            ns, 2, [PageView(storage, i * blocks * page, page, page, 3 * g + i) for i in range(3)]
        )
        for g, ns in enumerate(spaces)
    ]
    memory[:] = np.random.default_rng(1).integers(0, 256, memory.shape, np.uint8)
    order = list(range(1, blocks))
    random.Random(1).shuffle(order)
    chunks = [
        PageChunk(number, key, [order.pop(), order.pop()])
        for number, ns in zip(numbers, spaces)
        for key in chain_of(ns, 4)
    ]
    assert pages.store(chunks).result() == [Code.OK] * 24
    source = memory.copy()
    memory[:] = 0
    order = list(range(1, blocks))
    random.Random(2).shuffle(order)
    again = [chunk._replace(blocks=[order.pop(), order.pop()]) for chunk in chunks]
    assert pages.load(again).result() == [Code.OK] * 24
    for old, new in zip(chunks, again):
        assert (memory[:, new.blocks] == source[:, old.blocks]).all()
    crossed = [again[0], again[20]._replace(blocks=again[0].blocks)]
    assert pages.load(crossed).result() == [Code.OK, Code.INVALID_ARGUMENT]


def test_storages_are_registered_once_and_whole(client):
    memory = np.zeros(8192, np.uint8)
    pages = penstock.PageStore(client)
    storage = pages.register_storage(memory.ctypes.data, memory.nbytes, owner=memory)
    assert pages.register_buffer(memory) == storage
    for part in (memory[:4096], memory[100:200], memory[4096:]):
        with pytest.raises(penstock.InvalidArgument, match="overlap"):
            pages.register_buffer(part)
    for address, size in ((0, 100), (memory.ctypes.data, 0), ((1 << 64) - 10, 100)):
        with pytest.raises(penstock.InvalidArgument):
            pages.register_storage(address, size)
    with pytest.raises(penstock.BadBuffer):
        pages.register_storage(4096, 4096)  # Nothing is mapped there.
    with pytest.raises(penstock.BadBuffer):
        pages.register_buffer(bytes(100))
    assert pages.register_buffer(np.zeros(100, np.uint8)) == storage + 1
    assert pages.stats()["unregistered_storages"] == 0


def test_the_owner_of_a_storage_is_kept(client):
    import weakref

    class Owner:
        pass

    memory, owner = np.zeros(100, np.uint8), Owner()
    alive = weakref.ref(owner)
    pages = penstock.PageStore(client)
    pages.register_storage(memory.ctypes.data, memory.nbytes, owner=owner)
    del owner
    assert alive() is not None
    del pages
    assert alive() is None


def test_views_out_of_bounds_are_refused_by_name(client, ns):
    pages = penstock.PageStore(client)
    storage = pages.register_buffer(np.zeros(1000, np.uint8))
    good = PageView(storage, 0, 100, 100, 0)
    for views, why in (
        ([], "0 page views"),
        ([good, PageView(storage + 1, 0, 100, 100, 0)], "no storage 1"),
        ([PageView(storage, 901, 100, 100, 0)], "not even block 0"),
        ([PageView(storage, 0, 99, 100, 0)], "pages overlap"),
        ([PageView(storage, 0, 100, 0, 0)], "page_bytes"),
        ([PageView(storage, -1, 100, 100, 0)], "offset"),
        ([PageView(storage, 0, 100, 100, 70000)], "layer_index"),
    ):
        with pytest.raises(penstock.InvalidArgument, match=why):
            pages.add_group(ns, 1, views)
    with pytest.raises(penstock.InvalidArgument, match="blocks_per_chunk"):
        pages.add_group(ns, 0, [good])
    gone = pages.add_group(ns, 1, [good])
    pages.remove_group(gone)
    with pytest.raises(penstock.InvalidArgument):
        pages.layout(gone)
    with pytest.raises(penstock.InvalidArgument):
        pages.remove_group(gone)
    assert pages.store([penstock.PageChunk(gone, b"x" * 32, [1])]).result(5.0) == [
        penstock.Code.INVALID_ARGUMENT
    ]
    assert pages.add_group(ns, 1, [good]) == gone
    assert pages.layout(pages.add_group(ns, 2, [good, good._replace(layer_index=1)]))[:3] == (
        400, 200, 10,
    )  # fmt: skip
    with pytest.raises(penstock.InvalidArgument, match="no group"):
        pages.layout(7)


def test_pages_while_the_daemon_is_away_and_after_closing():
    with penstock.Client("unix:///nonexistent/penstock.sock") as client:
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        model = Model(client, ns)
        chunk = model.chunk(bytes(32), [1, 2])
        assert model.pages.load([chunk], timeout=2).result() == [Code.DISCONNECTED]
        assert model.pages.store([chunk], timeout=2).result() == [Code.DISCONNECTED]
        closed = Model(client, ns)
        closed.pages.close()
        closed.pages.close()
        assert closed.pages.load([chunk]).result() == [Code.DISCONNECTED]
        with pytest.raises(penstock.Disconnected):
            closed.pages.register_buffer(bytearray(10))
    assert model.pages.store([chunk]).result() == [Code.DISCONNECTED]
    with pytest.raises(penstock.Disconnected):
        penstock.PageStore(client)


def test_closing_the_pages_ends_what_is_in_flight(daemon):
    with penstock.Client(daemon.unix) as client:
        client.wait_connected(10)
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        model = Model(client, ns, page=1 << 18)
        keys = chain_of(ns, 4)
        daemon.freeze()
        chunks = [model.chunk(key, [2 * i + 1, 2 * i + 2]) for i, key in enumerate(keys)]
        ops = [model.pages.store(chunks, timeout=60), model.pages.load(chunks, timeout=60)]
        model.pages.close()
        assert all(op.done() for op in ops)
        assert [set(op.result()) for op in ops] == [{Code.CANCELLED}] * 2
        model.memory[:] = 0xEE
        daemon.thaw()
        client.ping(timeout=10)
        assert (model.memory == 0xEE).all()
        assert [r.code for r in client.get_many(ns, keys)] == [Code.MISS] * 4


def test_a_tensor_shared_by_layers(client, ns):
    torch = pytest.importorskip("torch")
    cache = torch.zeros(2, 8, 4, 16, dtype=torch.bfloat16)  # layers, blocks, tokens, width
    pages = penstock.PageStore(client, null_block=0)
    raw = cache.untyped_storage()
    storage = pages.register_storage(raw.data_ptr(), raw.nbytes(), owner=cache)
    page = cache[0, 0].numel() * cache.element_size()
    group = pages.add_group(
        ns,
        2,
        [
            PageView(
                storage,
                cache[layer].storage_offset() * cache.element_size(),
                cache.stride(1) * cache.element_size(),
                page,
                layer,
            )
            for layer in range(2)
        ],
    )
    cache[:, 3] = torch.randn(2, 4, 16)
    cache[:, 5] = torch.randn(2, 4, 16)
    (key,) = chain_of(ns, 1)
    assert pages.store([PageChunk(group, key, [3, 5])]).result() == [Code.OK]
    assert pages.load([PageChunk(group, key, [np.int64(7), 1])]).result() == [Code.OK]
    assert torch.equal(cache[:, 7], cache[:, 3]) and torch.equal(cache[:, 1], cache[:, 5])
    with pytest.raises(TypeError):
        pages.load([PageChunk(group, key, [1.5, 2])])
    with pytest.raises(TypeError):
        pages.load([(group, key)])
