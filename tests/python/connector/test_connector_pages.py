import pytest

torch = pytest.importorskip("torch")

from penstock_vllm.pages import LayoutRefused, geometry_digest, group_pages, layer_pages  # noqa: E402


def kv(blocks=8, heads=2, tokens=4, width=6, dtype=torch.bfloat16):
    return torch.zeros(blocks, heads, tokens, width, dtype=dtype)


def test_contiguous_tensor_has_one_page_a_block():
    tensor = kv()
    (page,) = layer_pages("l", tensor, 8)
    assert page.offset == 0
    assert page.page_bytes == page.block_stride == 2 * 4 * 6 * 2


def test_layers_that_share_a_storage_have_their_own_offsets():
    storage = torch.zeros(3, 8, 2, 4, 6, dtype=torch.bfloat16)
    pages = group_pages(["a", "b", "c"], {"a": storage[0], "b": storage[1], "c": storage[2]}, 8)
    assert len({page.data_ptr for _, page in pages}) == 1
    assert [page.offset for _, page in pages] == [0, 768, 1536]


def test_interleaved_layers_have_a_stride_longer_than_a_page():
    storage = torch.zeros(8, 3, 2, 4, 6, dtype=torch.bfloat16)
    pages = group_pages(["a", "b"], {"a": storage[:, 0], "b": storage[:, 2]}, 8)
    assert [page.page_bytes for _, page in pages] == [96, 96]
    assert [page.block_stride for _, page in pages] == [288, 288]
    assert [page.offset for _, page in pages] == [0, 192]


def test_order_inside_a_block_does_not_matter_but_is_in_the_digest():
    one = kv()
    other = torch.zeros(8, 4, 2, 6, dtype=torch.bfloat16).permute(0, 2, 1, 3)
    assert layer_pages("l", one, 8)[0].page_bytes == layer_pages("l", other, 8)[0].page_bytes
    assert geometry_digest(["l"], {"l": one}) != geometry_digest(["l"], {"l": other})


def test_digest_ignores_addresses_and_the_number_of_blocks():
    assert geometry_digest(["l"], {"l": kv(8)}) == geometry_digest(["l"], {"l": kv(16)})
    assert geometry_digest(["l"], {"l": kv()}) != geometry_digest(["m"], {"m": kv()})
    assert geometry_digest(["l"], {"l": kv()}) != geometry_digest(
        ["l"], {"l": kv(dtype=torch.float16)}
    )


def test_kernel_blocks_smaller_than_blocks_are_joined():
    (page,) = layer_pages("l", kv(blocks=16), 8)
    assert page.page_bytes == 2 * 96
    assert page.block_stride == 2 * 96


def test_kernel_blocks_with_gaps_are_pages_of_their_own():
    storage = torch.zeros(16, 2, 2, 4, 6, dtype=torch.bfloat16)
    pages = layer_pages("l", storage[:, 1], 8)
    assert [page.offset for page in pages] == [96, 288]
    assert {page.block_stride for page in pages} == {384}


@pytest.mark.parametrize(
    "tensor,why",
    [
        (kv().transpose(0, 1), "first dimension"),
        (kv()[:, :, :, :3], "not dense"),
        ([kv(), kv()], "state tensors"),
        (torch.zeros(2, 7, 4, 2, 6), "first dimension"),
        (kv(blocks=1).expand(8, 2, 4, 6), "overlap"),
    ],
)
def test_what_is_not_understood_is_refused(tensor, why):
    with pytest.raises(LayoutRefused, match=why):
        layer_pages("l", tensor, 8)


def test_layers_of_a_group_that_share_bytes_are_refused():
    tensor = kv()
    with pytest.raises(LayoutRefused, match="same bytes"):
        group_pages(["a", "b"], {"a": tensor, "b": tensor}, 8)


def test_layer_without_memory_is_refused():
    with pytest.raises(LayoutRefused, match="no KV tensor"):
        group_pages(["a"], {}, 8)
