"""Who owns which page of the keys' and values' pool. A row gets the pages of its whole life when it is admitted, so
that none can run out of memory half way."""

from collections.abc import Hashable

from qwen3tts.errors import CapacityError


class PageAllocator:
    """Pages 0 .. pages - 1 of `page` positions each. Which ones an owner gets makes no difference to its results."""

    def __init__(self, pages: int, page: int) -> None:
        """Raises ValueError for a pool without pages and for a page size that is no power of two."""
        if pages < 1 or page < 1 or page & (page - 1):
            raise ValueError(f"{pages} pages of {page} positions; expected at least one page, and a power of two")
        self.pages, self.page = pages, page
        self._free = list(range(pages - 1, -1, -1))
        self._owned: dict[Hashable, tuple[int, ...]] = {}

    @property
    def free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages that somebody owns."""
        return self.pages - len(self._free)

    def pages_for(self, positions: int) -> int:
        """Pages that so many positions take."""
        return -(-positions // self.page)

    def owned(self, owner: Hashable) -> tuple[int, ...]:
        """The pages of an owner in the order of its positions; empty if it has none."""
        return self._owned.get(owner, ())

    def reserve(self, owner: Hashable, positions: int) -> tuple[int, ...]:
        """Pages for all positions of a new owner. Raises CapacityError, taking none, if there are not enough."""
        if owner in self._owned:
            raise ValueError(f"{owner!r} has pages already")
        count = self.pages_for(positions)
        if count > self.free:
            raise CapacityError(
                f"{positions} positions take {count} pages of {self.page}, but {self.free} of {self.pages} are free. "
                "Close a stream, or load with more kv_bytes."
            )
        taken = tuple(reversed(self._free[len(self._free) - count :]))
        del self._free[len(self._free) - count :]
        self._owned[owner] = taken
        return taken

    def grow(self, pages: int) -> None:
        """Makes it `pages` pages in all; those that are owned stay where they are. Raises ValueError for fewer."""
        if pages < self.pages:
            raise ValueError(f"{pages} pages; there are {self.pages} already")
        self._free[:0] = range(pages - 1, self.pages - 1, -1)
        self.pages = pages

    def release(self, owner: Hashable) -> None:
        """Gives all pages of an owner back. Without effect if it has none."""
        self._free.extend(reversed(self._owned.pop(owner, ())))
