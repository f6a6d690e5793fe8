"""The page allocator against a plain count of what is owned."""

import random

import pytest

from qwen3tts.backends.native.decode.pages import PageAllocator
from qwen3tts.errors import CapacityError


@pytest.mark.parametrize(("pages", "page"), [(1, 1), (7, 8), (64, 32), (300, 64)])
def test_pages_belong_to_one_owner_and_all_come_back(seed, pages, page):
    rng = random.Random(f"{seed}-{pages}")
    allocator, owners = PageAllocator(pages, page), {}
    refused = 0
    for step in range(2000):
        if owners and rng.random() < 0.45:
            owner = rng.choice(list(owners))
            del owners[owner]
            allocator.release(owner)
            allocator.release(owner)
            assert allocator.owned(owner) == ()
        else:
            positions = rng.randint(0, rng.choice([2, pages * page // 3 + 1, 2 * pages * page]))
            count, free = -(-positions // page), allocator.free
            assert allocator.pages_for(positions) == count
            if count > free:
                refused += 1
                refusal = f"take {count} pages of {page}, but {free} of {pages} are free"
                with pytest.raises(CapacityError, match=refusal):
                    allocator.reserve(step, positions)
                assert allocator.free == free
                assert allocator.owned(step) == ()
            else:
                owners[step] = allocator.reserve(step, positions)
                assert len(owners[step]) == count
        taken = [number for numbers in owners.values() for number in numbers]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(pages))
        assert (allocator.used, allocator.free) == (len(taken), pages - len(taken))
        assert all(allocator.owned(owner) == numbers for owner, numbers in owners.items())
    assert refused
    for owner in owners:
        allocator.release(owner)
    assert allocator.free == pages
    assert sorted(allocator.reserve("all", pages * page)) == list(range(pages))


def test_what_makes_no_sense_is_refused():
    for pages, page in ((0, 8), (4, 0), (4, 12)):
        with pytest.raises(ValueError, match="expected at least one page, and a power of two"):
            PageAllocator(pages, page)
    allocator = PageAllocator(4, 8)
    allocator.reserve("row", 8)
    with pytest.raises(ValueError, match="'row' has pages already"):
        allocator.reserve("row", 8)
    assert allocator.used == 1


def test_a_larger_pool_keeps_what_is_owned(seed):
    rng, allocator, owners = random.Random(seed), PageAllocator(3, 8), {}
    for owner in range(40):
        wanted = rng.randint(1, 40)
        if allocator.pages_for(wanted) > allocator.free:
            allocator.grow(allocator.used + allocator.pages_for(wanted) + rng.randint(0, 2))
        owners[owner] = allocator.reserve(owner, wanted)
        if rng.random() < 0.4:
            gone = rng.choice(list(owners))
            allocator.release(gone)
            del owners[gone]
    assert all(allocator.owned(owner) == pages for owner, pages in owners.items())
    taken = [page for pages in owners.values() for page in pages]
    assert len(set(taken)) == len(taken) == allocator.used
    assert set(taken) <= set(range(allocator.pages))
    rest = allocator.reserve("rest", 8 * allocator.free)
    assert sorted([*taken, *rest]) == list(range(allocator.pages))
    with pytest.raises(ValueError, match="there are"):
        allocator.grow(allocator.pages - 1)
